"""The Kafka listener of a node: opened before the node is heard, served once the node is there.

    open_listener ──▶ users and certificates readable? address free? ──▶ bound ──▶ serve: a FarmTopic behind services
              └── otherwise `KeyFileError` or `NodeStopped`, as for the Raft port

    KafkaListener ◀── ConsumerService   Metadata, ListOffsets, Fetch
                  ◀── ProduceService    Produce, InitProducerId: always there, since clients judge by it whether a
                                        server has their format of records
                  ◀── GroupService      consumer groups, with `groups`
                  ◀── QuorumViewService DescribeQuorum, for Kafka's quorum tool

This module needs kio; `opening` imports it only if the settings ask for a listener.
"""

import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from bridge.node.events.alarms import Alarms, NodeStopped
from bridge.node.events.event_log import clock_ms
from bridge.node.founded_farm import CurrentFarm
from bridge.node.kafka.farm_quorum import KAFKA_LISTENER, quorum_of
from bridge.node.kafka.farm_topic import FarmTopic
from bridge.node.kafka.group_offsets import FarmGroupOffsets
from bridge.node.kafka.listed_users import ListedUsers, read_listed_users
from bridge.node.kafka.producing import Producing
from bridge.node.local_node import LocalNode
from bridge.node.settings.descriptors import descriptor_shares
from bridge.node.settings.kafka import KafkaSettings
from consensus.net import CertificateError
from consensus.protocols.kraft import (
    ConsumerService,
    GroupService,
    KafkaListener,
    Limits,
    ListenerOptions,
    ListenerSecurity,
    ProduceService,
    QuorumViewService,
    server_context,
)
from gossip.node import endpoint

LOG = logging.getLogger(__name__)
READ_BYTES: Final = 64 * 1024
"""Requests that only read have a few hundred bytes; a group's members say what they want in some thousand."""
WRITE_BYTES: Final = 4 * 1024 * 1024
"""Batches of clients have 1 MB, if nothing else is set."""
INCOMPLETE_BYTES: Final = 16 * 1024 * 1024
_WORD: Final = re.compile("[a-z0-9]+")


class FarmListener:
    """The bound listener of one node."""

    def __init__(
        self,
        settings: KafkaSettings,
        options: ListenerOptions,
        bound: Sequence[trio.SocketListener],
        current: CurrentFarm,
        users: ListedUsers | None,
        alarms: Alarms,
    ) -> None:
        self._bound = bound
        self._users = users
        self._alarms = alarms
        self._producing = Producing(current, users if settings.write else None, alarms)
        self._advertise = settings.advertise
        self._groups = FarmGroupOffsets(current, settings.topic, alarms) if settings.groups else None
        topic = FarmTopic(current, settings, self._advertise, self._producing, self._groups)
        quorum = QuorumViewService(lambda: quorum_of(current, settings), clock_ms)
        services = (ConsumerService(topic), ProduceService(topic), GroupService(topic), quorum)
        self._listener = KafkaListener(services, options)

    @property
    def url(self) -> str:
        """Where clients connect."""
        return endpoint(self._advertise)

    @property
    def counters(self) -> Mapping[str, int]:
        """For the view and the metrics: requests, connections by their end, what was produced or refused."""
        found = Counter({"_".join(_WORD.findall(name.lower())): each for name, each in self._listener.counters.items()})
        if self._groups is not None:
            found["offsets_written"] = self._groups.written
        return found | {f"produced_{name}": each for name, each in self._producing.counters.items()}

    async def serve(self) -> None:
        """Answer clients until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._users is not None:
                nursery.start_soon(self._users.watch, self._alarms)
            await self._listener.run(self._bound)


@asynccontextmanager
async def open_listener(local: LocalNode, settings: KafkaSettings, current: CurrentFarm) -> AsyncIterator[FarmListener]:
    """Have the listener's socket bound while the block lasts; raises `NodeStopped` and `KeyFileError`."""
    users = None
    if settings.users is not None:
        by_certificate = settings.client_ca is not None
        users = ListedUsers(
            settings.users,
            read_listed_users(settings.users, by_certificate=by_certificate),
            by_certificate=by_certificate,
        )
    connections = descriptor_shares().kafka
    options = ListenerOptions(
        name=KAFKA_LISTENER,
        host=settings.listen.host,
        port=settings.listen.port,
        security=_security(settings, users),
        limits=Limits(max_request_bytes=WRITE_BYTES if settings.write else READ_BYTES, max_elements=20_000),
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
        yield FarmListener(settings, options, bound, current, users, local.alarms)
    finally:
        for each in bound:
            each.socket.close()


def _security(settings: KafkaSettings, users: ListedUsers | None) -> ListenerSecurity:
    tls = None
    if settings.certificate is not None:
        try:
            tls = server_context(settings.certificate, settings.client_ca)
        except CertificateError as error:
            raise NodeStopped(f"[kafka]: {error}") from error
    return ListenerSecurity(tls, users if users is not None and settings.client_ca is None else None)
