"""The Kafka listener of a node. It binds before other nodes discover this node, and serves when the node runs.

    open_endpoint ──▶ users and certificates readable? address free? ──▶ bound ──▶ serve: services with a FarmTopic
              └── otherwise `KeyFileError` or `NodeStopped`, as for the Raft port

    KafkaListener ◀── ConsumerService   Metadata, ListOffsets, Fetch
                  ◀── ProduceService    Produce, InitProducerId: always present, since clients derive the server's
                                        format of records from it
                  ◀── GroupService      consumer groups, with `groups`
                  ◀── QuorumViewService DescribeQuorum, for Kafka's quorum tool
                  ◀── ConfigsService    DescribeConfigs, read-only

The certificate and the clients' authority are read again when a file has changed (`CertificateFiles`). So an expiring
certificate is renewed without a restart; open connections keep their certificate. If a file is unusable, its previous
content stays in force, and an alarm is set.

This module needs kio; `bridge.node.client_endpoints` imports it only if the settings have a listener.
"""

import logging
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import trio
from msgspec.structs import replace

from bridge.api.alarms import CORRECT_FILE, KAFKA_CERTIFICATE, KAFKA_LEVEL_LOW
from bridge.core.log.feature_level import KAFKA_LEVEL
from bridge.node.events.alarms import Alarms, NodeStopped
from bridge.node.events.event_log import clock_ms
from bridge.node.founded_farm import CurrentFarm
from bridge.node.kafka.counters import TopicEvent
from bridge.node.kafka.farm_quorum import KAFKA_LISTENER, quorum_of
from bridge.node.kafka.farm_topic import FarmTopic
from bridge.node.kafka.group_offsets import FarmGroupOffsets
from bridge.node.kafka.listed_users import ListedUsers, read_listed_users
from bridge.node.kafka.producing import Producing
from bridge.node.local_node import LocalNode
from bridge.node.security.certificates import show_validity, validity_at
from bridge.node.security.key_files import ChangedFiles
from bridge.node.security.listed_file import LOOK_EVERY_S
from bridge.node.settings.clients import KafkaSettings
from bridge.node.settings.descriptors import descriptor_shares
from consensus import CountedReason
from consensus.net import CertificateError, NodeCertificate, server_context
from consensus.protocols import kafka as protocol
from gossip.node import endpoint

LOG = logging.getLogger(__name__)
READ_BYTES: Final = 64 * 1024
"""Read requests have a few hundred bytes; requests of group members have some thousand."""
WRITE_BYTES: Final = 4 * 1024 * 1024
"""Batches of clients have 1 MB by default."""
INCOMPLETE_BYTES: Final = 16 * 1024 * 1024
Dates = tuple[datetime, datetime] | CertificateError
"""The start and end of validity, or the error that prevents reading them."""


class CertificateFiles:
    """The files of TLS: their context, and the certificate's dates. The files are read again only after a change."""

    def __init__(self, certificate: Path, client_ca: Path | None) -> None:
        self.certificate = certificate
        self._client_ca = client_ca
        paths = (certificate,) if client_ca is None else (certificate, client_ca)
        self._files = ChangedFiles(self._load, *paths)

    async def read(self) -> tuple[ssl.SSLContext, Dates]:
        """Return the context, and the dates or their error. Raise CertificateError if TLS cannot use the files."""
        return await trio.to_thread.run_sync(self._files.read)

    def _load(self) -> tuple[ssl.SSLContext, Dates]:
        tls = server_context(self.certificate, self._client_ca)
        try:
            return tls, NodeCertificate(self.certificate, b"").dates()
        except CertificateError as error:
            # OpenSSL reads more forms of certificates than `dates`, such as BEGIN TRUSTED CERTIFICATE.
            return tls, error


class FarmListener:
    """The bound listener of one node."""

    def __init__(
        self,
        settings: KafkaSettings,
        options: protocol.ListenerOptions,
        bound: Sequence[trio.SocketListener],
        current: CurrentFarm,
        users: ListedUsers | None,
        certificate_files: CertificateFiles | None,
        alarms: Alarms,
    ) -> None:
        self._bound = bound
        self._current = current
        self._settings = settings
        self._users = users
        self._certificate_files = certificate_files
        self._alarms = alarms
        self._producing = Producing(current, users if settings.write else None, alarms)
        self._groups = FarmGroupOffsets(current, settings.topic, alarms) if settings.groups else None
        topic = FarmTopic(current, settings, settings.advertise, self._producing, self._groups)
        quorum = protocol.QuorumViewService(lambda: quorum_of(current, settings), clock_ms)
        services = (
            protocol.ConsumerService(topic),
            protocol.ProduceService(topic),
            protocol.GroupService(topic),
            protocol.ConfigsService(topic, max_request_bytes=options.limits.max_request_bytes, has_server_time=True),
            quorum,
        )
        self._listener = protocol.KafkaListener(services, options)

    @property
    def url(self) -> str:
        """The address for clients."""
        return endpoint(self._settings.advertise)

    @property
    def counters(self) -> Counter[CountedReason]:
        """Counts for the view and the metrics: requests, ended connections, produced and refused records."""
        found: Counter[CountedReason] = Counter()
        if self._groups is not None:
            found[TopicEvent.OFFSETS_WRITTEN] = self._groups.written
        found.update(self._listener.counters)
        found.update(self._producing.counters)
        return found

    async def serve(self) -> None:
        """Serve clients until canceled."""
        async with trio.open_nursery() as nursery:
            if self._users is not None:
                nursery.start_soon(self._users.watch, self._alarms)
            nursery.start_soon(self._watch_level)
            if self._certificate_files is not None:
                nursery.start_soon(self._watch_certificates)
            await self._listener.run(self._bound)

    async def _watch_level(self) -> None:
        """Clear the alarm when the level suffices.

        A refused client may never return, so its request cannot clear the alarm.
        """
        while True:
            farm = await self._current.founded()
            if farm.state.level >= KAFKA_LEVEL:
                self._alarms.clear(KAFKA_LEVEL_LOW)
            await trio.sleep(LOOK_EVERY_S)

    async def _watch_certificates(self) -> None:
        while True:
            await trio.sleep(LOOK_EVERY_S)
            await self.reload_certificates()

    async def reload_certificates(self) -> None:
        """Use the files of TLS, if one has changed.

        The alarm is set while clients refuse the certificate for its dates, and in its last month.
        """
        files = self._certificate_files
        if files is None:
            return
        try:
            tls, dates = await files.read()
        except CertificateError as error:
            text = f"{error}; the content that was read before stays in use"
            self._alarms.set(KAFKA_CERTIFICATE, text, CORRECT_FILE)
            return
        options = self._listener.options
        if tls is not options.security.tls:
            self._listener.options = replace(options, security=replace(options.security, tls=tls))
        show_validity(validity_at(files.certificate, dates, datetime.now(UTC)), self._alarms, KAFKA_CERTIFICATE)


@asynccontextmanager
async def open_endpoint(local: LocalNode, settings: KafkaSettings, current: CurrentFarm) -> AsyncIterator[FarmListener]:
    """Bind the listener's socket while the block lasts; raise `NodeStopped` and `KeyFileError`."""
    users = await trio.to_thread.run_sync(_users, settings)
    files = None if settings.certificate is None else CertificateFiles(settings.certificate, settings.client_ca)
    security = await _security(settings, users, files)
    connections = descriptor_shares().kafka
    options = protocol.ListenerOptions(
        name=KAFKA_LISTENER,
        host=settings.listen.host,
        port=settings.listen.port,
        security=security,
        limits=protocol.Limits(max_request_bytes=WRITE_BYTES if settings.write else READ_BYTES, max_elements=20_000),
        max_connections=connections,
        max_connections_per_source=max(1, connections // 2),
        max_incomplete_bytes=INCOMPLETE_BYTES,
    )
    try:
        bound = await trio.open_tcp_listeners(settings.listen.port, host=settings.listen.host)
    except OSError as error:
        raise NodeStopped(
            f"[kafka]: cannot listen at {endpoint(settings.listen)}: {error.strerror or error}: choose an address of"
            " this machine and a port that no other process uses"
        ) from error
    try:
        LOG.info("Kafka's clients are answered at %s, topic %s", endpoint(settings.advertise), settings.topic)
        yield FarmListener(settings, options, bound, current, users, files, local.alarms)
    finally:
        for each in bound:
            each.socket.close()


def _users(settings: KafkaSettings) -> ListedUsers | None:
    if settings.users is None:
        return None
    by_certificate = settings.client_ca is not None
    return ListedUsers(
        settings.users,
        read_listed_users(settings.users, by_certificate=by_certificate),
        by_certificate=by_certificate,
    )


async def _security(
    settings: KafkaSettings, users: ListedUsers | None, files: CertificateFiles | None
) -> protocol.ListenerSecurity:
    try:
        tls = None if files is None else (await files.read())[0]
    except CertificateError as error:
        raise NodeStopped(f"[kafka]: {error}") from error
    return protocol.ListenerSecurity(tls, users if settings.client_ca is None else None)
