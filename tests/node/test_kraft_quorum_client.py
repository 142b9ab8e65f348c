"""A quorum asked from outside: the leader is found from any server, and its log is read over leaders and snapshots."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from consensus.protocols.kraft.node.consumer_service import ConsumerService
from consensus.protocols.kraft.node.open_voter import VoterOptions
from consensus.protocols.kraft.node.quorum_client import (
    LogRecord,
    LogStart,
    QuorumClient,
    QuorumClientError,
    control_text,
)
from consensus.protocols.kraft.node.settings import VoterSettings
from tests.node.test_kraft_voter import LOOPBACK, Quorum, batch, formatted, opened

CONSUMERS = VoterOptions(services=lambda topic: (ConsumerService(topic, describes_cluster=False),))


def bootstrap(settings: list[VoterSettings]) -> list[tuple[str, int]]:
    """Where the servers are."""
    return [(LOOPBACK, each.listeners[0].port) for each in settings]


async def read(client: QuorumClient, first: int) -> list[LogRecord | LogStart]:
    """All that is committed from there on."""
    async with aclosing(client.records(first)) as items:
        return [item async for item in items]


def told(tmp_path: Path, story: Callable[[Quorum, list[VoterSettings], QuorumClient], Awaitable[None]]) -> None:
    """A story of three servers and a client of all of them."""

    async def run() -> None:
        # A snapshot replaces all that it covers.
        settings = [replace(each, retention_bytes=1) for each in formatted(tmp_path, 3, dynamic=True)]
        async with opened(settings, CONSUMERS) as quorum:
            await quorum.leader()
            await story(quorum, settings, QuorumClient(bootstrap(settings)))

    trio.run(run)


def test_any_server_tells_who_leads(tmp_path: Path) -> None:
    """The first may be down; every other one names the leader, which describes the quorum."""

    async def story(quorum: Quorum, settings: list[VoterSettings], client: QuorumClient) -> None:
        leader = await quorum.leader()
        follower = next(each for each in quorum.running if each != leader.key.id)
        nowhere = (LOOPBACK, 1)
        asked = QuorumClient([nowhere, bootstrap(settings)[follower - 1]])
        found = await asked.describe()
        assert found.leader_id == leader.key.id
        assert {each.node_id for each in found.voters} == {1, 2, 3}
        assert found.observers == ()
        assert [where.port for where in found.listeners[follower]] == [settings[follower - 1].listeners[0].port]
        del client

    told(tmp_path, story)


def test_a_quorum_without_a_majority_has_no_leader(tmp_path: Path) -> None:
    """When the patience is over, the reason names the server that was asked last."""

    async def story(quorum: Quorum, settings: list[VoterSettings], client: QuorumClient) -> None:
        del client
        leader = await quorum.leader()
        left = next(each for each in quorum.running if each != leader.key.id)
        for node_id in [each for each in quorum.running if each != left]:
            await quorum.end(node_id)
        with pytest.raises(QuorumClientError, match=r"127\.0\.0\.1"):
            await QuorumClient([bootstrap(settings)[left - 1]], patience_s=0.1).describe()

    told(tmp_path, story)


def test_the_log_is_read_from_any_offset_to_the_high_watermark(tmp_path: Path) -> None:
    """Records with their offsets, and the protocol's own in words; nothing lies beyond the end."""

    async def story(quorum: Quorum, settings: list[VoterSettings], client: QuorumClient) -> None:
        del settings
        leader = await quorum.leader()
        produced = await leader.topic.append(batch(b"one", b"two"), None)
        items = await read(client, 0)
        records = [item for item in items if isinstance(item, LogRecord)]
        assert [record.offset for record in records] == list(range(len(items)))
        texts = [control_text(record) for record in records if record.control_type is not None]
        assert texts[0] is not None
        assert texts[0].startswith(f"leader {leader.key.id}, granted by ")
        assert texts[1] == "level 1"
        assert [record.value for record in records[produced.base_offset :]] == [b"one", b"two"]
        assert await read(client, produced.base_offset + 1) == items[produced.base_offset + 1 :]
        assert await read(client, 1_000) == []

    told(tmp_path, story)


def test_where_the_log_is_compacted_it_says_where_it_goes_on(tmp_path: Path) -> None:
    """The snapshot stands for what was before."""

    async def story(quorum: Quorum, settings: list[VoterSettings], client: QuorumClient) -> None:
        del settings
        leader = await quorum.leader()
        await leader.topic.append(batch(b"before"), None)
        snapshot = await leader.server.take_snapshot()
        assert snapshot is not None
        await leader.topic.append(batch(b"after"), None)
        start = leader.server.describe().raft.log_start.index
        assert start > 0
        first, *others = await read(client, 0)
        assert first == LogStart(start)
        assert next(item.offset for item in others if isinstance(item, LogRecord)) == start

    told(tmp_path, story)


def test_a_follower_of_the_log_goes_on_with_the_next_leader(tmp_path: Path) -> None:
    """What another leader commits comes after what was read, without a gap."""

    async def story(quorum: Quorum, settings: list[VoterSettings], client: QuorumClient) -> None:
        del settings
        leader = await quorum.leader()
        await leader.topic.append(batch(b"first"), None)
        values: list[bytes | None] = []
        offsets: list[int] = []
        async with aclosing(client.records(0, follow=True)) as items:
            async for item in items:
                assert isinstance(item, LogRecord)
                offsets.append(item.offset)
                if item.control_type is not None:
                    continue
                values.append(item.value)
                if len(values) == 2:
                    break
                await quorum.end(leader.key.id)
                await (await quorum.leader()).topic.append(batch(b"second"), None)
        assert values == [b"first", b"second"]
        assert offsets == list(range(len(offsets)))

    told(tmp_path, story)
