"""The Kafka listener of a node over loopback: read and produce access by passwords and by certificates."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import trio

from bridge.api.alarms import KAFKA_CERTIFICATE
from bridge.node.founded_farm import CurrentFarm
from bridge.node.kafka.endpoint import READ_BYTES, FarmListener, open_endpoint
from bridge.node.local_node import LocalNode
from bridge.node.security import key_files
from bridge.node.settings.clients import KafkaSettings
from bridge.wire.keys.scram_text import new_credential
from consensus.net.tls import NodeCertificate, authority_context
from consensus.protocols.kafka import (
    ClientSecurity,
    DialOptions,
    ErrorCode,
    KafkaConnectionError,
    ListenerClose,
    ListenerEvent,
    Login,
    Mechanism,
    Record,
    RecordBatch,
    connect,
    open_connection,
)
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire.record_batches import read_batches
from gossip import Address
from tests.node.certificates import Authority
from tests.node.farm_stage import Stage
from tests.node.kafka_farm import farm_of, stage_at, topic_of
from tests.processes import free_ports
from tests.wire.record_batches import encode_batch

LOOPBACK = "127.0.0.1"
BOUND_S = 60.0
NOTE = b'{"note": 1}'


pytestmark = pytest.mark.usefixtures("machine_clock")


@asynccontextmanager
async def serving(stage: Stage, **settings: object) -> AsyncIterator[tuple[FarmListener, int]]:
    """Yield a listener over the stage's farm, and its port."""
    [port] = free_ports(1)
    here = Address(LOOPBACK, port)
    kafka = KafkaSettings(listen=here, advertise=here, **settings)  # type: ignore[arg-type]
    local = cast("LocalNode", SimpleNamespace(configuration=SimpleNamespace(kafka=kafka), alarms=stage.alarms))
    with trio.fail_after(BOUND_S):
        async with open_endpoint(local, kafka, CurrentFarm(farm_of(stage))) as listener, trio.open_nursery() as nursery:
            nursery.start_soon(listener.serve)
            yield listener, port
            nursery.cancel_scope.cancel()


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def login(user: str, password: str, mechanism: Mechanism = Mechanism.SCRAM_SHA_512) -> ClientSecurity:
    return ClientSecurity(login=Login(user, password, mechanism))


async def produce_error(port: int, stage: Stage, security: ClientSecurity, value: bytes = NOTE) -> ErrorCode:
    state = topic_of(stage).state()
    batch = encode_batch(RecordBatch(0, -1, (Record(0, None, value),)))
    request = clients.ProduceRequest(
        acks=-1,
        timeout_ms=5_000,
        topic_data=(
            clients.ProduceRequestTopic(
                name=state.name,
                topic_id=state.topic_id,
                partition_data=(clients.ProduceRequestPartition(index=0, records=batch),),
            ),
        ),
    )
    async with open_connection(LOOPBACK, port, DialOptions(security=security)) as connection:
        response: clients.ProduceResponse = await connection.ask(request)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


async def fetched_values(port: int, stage: Stage, security: ClientSecurity) -> list[bytes | None]:
    """Return the values that a client reads from the start of the log."""
    state = topic_of(stage).state()
    request = clients.FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        topics=(
            clients.FetchRequestTopic(
                topic=state.name,
                topic_id=state.topic_id,
                partitions=(clients.FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=2**20),),
            ),
        ),
    )
    async with open_connection(LOOPBACK, port, DialOptions(security=security)) as connection:
        response: clients.FetchResponse = await connection.ask(request)
    data = response.responses[0].partitions[0].records or b""
    return [record.value for batch in read_batches(data) for record in batch.records]


async def test_loopback_client_reads_but_does_not_write() -> None:
    stage = stage_at()
    await stage.append(NOTE)
    async with serving(stage) as (listener, port):
        assert await fetched_values(port, stage, ClientSecurity()) == [NOTE]
        assert await produce_error(port, stage, ClientSecurity()) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert stage.log == [NOTE]
        assert listener.counters[ListenerEvent.REQUESTS_ANSWERED] == 4
        assert listener.counters[ListenerEvent.BYTES_SENT] > listener.counters[ListenerEvent.BYTES_RECEIVED] > 0


@pytest.mark.parametrize("mechanism", list(Mechanism))
async def test_listed_users_produce_within_their_scopes(tmp_path: Path, mechanism: Mechanism) -> None:
    stage = stage_at()
    users = private(
        tmp_path / "users", f"writer {new_credential(mechanism, 'w')} submit\nreader {new_credential(mechanism, 'r')}\n"
    )
    async with serving(stage, users=users, write=True) as (_, port):
        writer, reader = login("writer", "w", mechanism), login("reader", "r", mechanism)
        assert await produce_error(port, stage, writer) is ErrorCode.NONE
        assert await produce_error(port, stage, reader) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert await produce_error(port, stage, writer, b"no JSON") is ErrorCode.INVALID_RECORD
        assert await fetched_values(port, stage, reader) == [NOTE]
        for unknown_user in (login("reader", "x", mechanism), login("stranger", "r", mechanism)):
            with pytest.raises(KafkaConnectionError, match="user, password or mechanism is wrong"):
                await connect(LOOPBACK, port, DialOptions(security=unknown_user))


async def test_certificate_subject_is_the_user(tmp_path: Path) -> None:
    stage, authority = stage_at(), Authority(tmp_path)
    users = private(tmp_path / "users", "CN=collector certificate submit\n")
    own, collector, reader = (authority.certificate(name) for name in (LOOPBACK, "collector", "reader"))
    settings = {"certificate": own.path, "client_ca": authority.file, "users": users, "write": True}
    async with serving(stage, **settings) as (_, port):
        shown = {
            client: ClientSecurity(tls=authority_context(authority.file, client.path)) for client in (collector, reader)
        }
        assert await produce_error(port, stage, shown[collector]) is ErrorCode.NONE
        assert await produce_error(port, stage, shown[reader]) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert await fetched_values(port, stage, shown[reader]) == [NOTE]
        bare = ClientSecurity(tls=authority_context(authority.file))
        with pytest.raises(KafkaConnectionError, match="no connection to"):
            await connect(LOOPBACK, port, DialOptions(security=bare))


async def test_reload_keeps_old_certificate_on_error(tmp_path: Path) -> None:
    stage, authority, other = stage_at(), Authority(tmp_path), Authority(tmp_path, "other")
    own, renewed = authority.certificate(LOOPBACK, days=(-1, 60)).path, other.certificate(LOOPBACK, days=(-1, 60)).path

    def write(data: bytes, at_s: int) -> None:
        own.write_bytes(data)
        os.utime(own, (at_s, at_s))

    async with serving(stage, certificate=own) as (listener, port):

        async def is_trusted(file: Path) -> bool:
            try:
                await fetched_values(port, stage, ClientSecurity(tls=authority_context(file)))
            except KafkaConnectionError:
                return False
            return True

        assert await is_trusted(authority.file)
        write(b"nonsense", 1)
        await listener.reload_certificates()
        assert "cannot be used" in (stage.alarm(KAFKA_CERTIFICATE.kind) or "")
        assert await is_trusted(authority.file)
        write(renewed.read_bytes(), 2)
        await listener.reload_certificates()
        assert stage.alarm(KAFKA_CERTIFICATE.kind) is None
        assert await is_trusted(other.file)
        assert not await is_trusted(authority.file)
        write(authority.certificate(LOOPBACK, days=(-9, -1)).path.read_bytes(), 3)
        await listener.reload_certificates()
        assert "others refuse it" in (stage.alarm(KAFKA_CERTIFICATE.kind) or "")


async def test_certificate_in_trusted_form_is_served_with_alarm(tmp_path: Path) -> None:
    stage, authority = stage_at(), Authority(tmp_path)
    own = authority.certificate(LOOPBACK, days=(-1, 60)).path
    own.write_text(own.read_text().replace(" CERTIFICATE-----", " TRUSTED CERTIFICATE-----"))
    async with serving(stage, certificate=own) as (listener, port):
        await fetched_values(port, stage, ClientSecurity(tls=authority_context(authority.file)))
        await listener.reload_certificates()
        assert "the dates of" in (stage.alarm(KAFKA_CERTIFICATE.kind) or "")


async def test_unchanged_certificate_is_not_parsed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, authority = stage_at(), Authority(tmp_path)
    own = authority.certificate(LOOPBACK, days=(-1, 60)).path
    monkeypatch.setattr(key_files, "_NEW_NS", 0)  # A file of the last seconds is read again.
    async with serving(stage, certificate=own) as (listener, _):
        monkeypatch.setattr(NodeCertificate, "dates", lambda _: pytest.fail("parsed"))
        for _ in range(2):
            await listener.reload_certificates()
        assert stage.alarm(KAFKA_CERTIFICATE.kind) is None


async def test_read_only_listener_closes_connection_of_large_request() -> None:
    stage = stage_at()
    async with serving(stage) as (listener, port):
        with pytest.raises(KafkaConnectionError):
            await produce_error(port, stage, ClientSecurity(), b"x" * READ_BYTES)
        while not listener.counters.get(ListenerClose.MALFORMED):
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("groups", [False, True])
async def test_group_apis_depend_on_settings(*, groups: bool) -> None:
    async with serving(stage_at(), groups=groups) as (_, port):
        connection = await connect(LOOPBACK, port)
        assert (11 in connection.versions) is groups
        assert {0, 1, 2, 3, 22, 55, 60} <= connection.versions.keys()
        await connection.aclose()
