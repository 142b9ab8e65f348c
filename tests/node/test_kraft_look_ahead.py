"""Commits and heartbeats of one connection: the order of responses, and the limit on delays of heartbeats.

Commits delay heartbeats by at most a tenth of the session timeout.
"""

# ruff: noqa: ARG002 - the clock fixture acts by being requested, and services share one signature

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from bridge.node.founded_farm import CurrentFarm
from bridge.node.kafka.group_offsets import EVERY_S, FarmGroupOffsets
from consensus.protocols.kafka import GroupOptions, GroupService, KafkaListener, ListenerOptions, Service
from consensus.protocols.kafka.connections.counters import ListenerClose, ListenerEvent
from consensus.protocols.kafka.connections.framing import FrameStream
from consensus.protocols.kafka.connections.look_ahead import MAX_OVERLAPPING
from consensus.protocols.kafka.connections.service import Caller, ServedApi
from consensus.protocols.kafka.wire import messages_groups as groups
from consensus.protocols.kafka.wire.apis import ApiKey, ErrorCode
from consensus.protocols.kafka.wire.codec import decode_response, encode_request
from consensus.server.errors import ServerBusyError
from tests.node.farm_stage import Stage
from tests.node.kafka_farm import farm_of, stage_at
from tests.node.kraft_topic import MemoryOffsets, MemoryTopic

pytestmark = pytest.mark.usefixtures("machine_clock")

VERSIONS = {
    ApiKey.JOIN_GROUP: 5,
    ApiKey.SYNC_GROUP: 3,
    ApiKey.HEARTBEAT: 3,
    ApiKey.OFFSET_COMMIT: 7,
    ApiKey.LIST_GROUPS: 2,
}
SESSION_S = 10.0
STORY_S = 30


class Client:
    """One connection of a client that sends without waiting, as librdkafka does, and checks the order of responses."""

    def __init__(self, frames: FrameStream) -> None:
        self.frames = frames
        self._sends = trio.Lock()
        self.member = ("", -1)
        self.sent: list[tuple[ApiKey, float]] = []
        self.responses: list[tuple[ApiKey, Any]] = []
        self.waits_s: dict[ApiKey, list[float]] = {key: [] for key in VERSIONS}

    async def send(self, key: ApiKey, message: Any) -> None:
        async with self._sends:
            self.sent.append((key, trio.current_time()))
            await self.frames.send(encode_request(key, VERSIONS[key], len(self.sent), "test", message))

    async def receive(self) -> Any:
        """Receive the response to the oldest unanswered request."""
        number = len(self.responses) + 1
        frame = await self.frames.receive()
        key, sent_s = self.sent[number - 1]
        correlation_id, message = decode_response(key, VERSIONS[key], frame)
        assert correlation_id == number, "responses come in the order of the requests"
        self.waits_s[key].append(trio.current_time() - sent_s)
        self.responses.append((key, message))
        return message

    async def receive_all(self) -> None:
        """Receive responses until canceled."""
        while True:
            await self.receive()

    async def ask(self, key: ApiKey, message: Any) -> Any:
        """Send one request, and wait for its response."""
        await self.send(key, message)
        return await self.receive()

    async def join(self, session_s: float = SESSION_S) -> None:
        """Join the group as its only member."""
        protocol = groups.JoinGroupRequestProtocol(name="range", metadata=b"")
        member_id = ""
        while self.member[1] < 0:
            message = groups.JoinGroupRequest(
                group_id="g",
                session_timeout_ms=round(session_s * 1000),
                rebalance_timeout_ms=60_000,
                member_id=member_id,
                protocol_type="consumer",
                protocols=(protocol,),
            )
            joined = await self.ask(ApiKey.JOIN_GROUP, message)
            member_id = joined.member_id
            self.member = (member_id, joined.generation_id)
        assignment = groups.SyncGroupRequestAssignment(member_id=member_id, assignment=b"")
        sync = groups.SyncGroupRequest(
            group_id="g", generation_id=self.member[1], member_id=member_id, assignments=(assignment,)
        )
        assert (await self.ask(ApiKey.SYNC_GROUP, sync)).error_code == ErrorCode.NONE

    def commit_of(self, offset: int) -> groups.OffsetCommitRequest:
        part = groups.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        topic = groups.OffsetCommitRequestTopic(name="farm", partitions=(part,))
        member_id, generation = self.member
        return groups.OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=generation, member_id=member_id, topics=(topic,)
        )

    def heartbeat(self) -> groups.HeartbeatRequest:
        return groups.HeartbeatRequest(group_id="g", generation_id=self.member[1], member_id=self.member[0])

    def errors(self, key: ApiKey) -> list[int]:
        """Return the error codes of the responses of one API."""
        found = [message for answered, message in self.responses if answered is key]
        if key is ApiKey.OFFSET_COMMIT:
            return [message.topics[0].partitions[0].error_code for message in found]
        return [message.error_code for message in found]


@asynccontextmanager
async def connected(service: Service) -> AsyncIterator[tuple[Client, KafkaListener]]:
    listener = KafkaListener((service,), ListenerOptions())
    near, far = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.serve, far, "127.0.0.1", 1)
        yield Client(FrameStream(near, 2**20)), listener
        nursery.cancel_scope.cancel()


async def farm_group() -> tuple[Stage, FarmGroupOffsets, GroupService]:
    """Return a stage, and consumer groups whose offsets are entries of its log."""
    stage = stage_at()
    for number in range(100):
        await stage.append(b'{"note": %d}' % number)
    offsets = FarmGroupOffsets(CurrentFarm(farm_of(stage)), "farm", stage.alarms)
    topic = MemoryTopic()
    topic.offsets = offsets  # type: ignore[assignment]
    return stage, offsets, GroupService(topic, GroupOptions(first_delay_ms=0))


@pytest.mark.parametrize(("session_s", "commit_every_s"), [(6.0, 0.1), (SESSION_S, 1.0), (45.0, 0.1)])
async def test_heartbeats_queued_after_commits_get_timely_replies(
    autojump_clock: MockClock, session_s: float, commit_every_s: float
) -> None:
    _, offsets, service = await farm_group()
    async with connected(service) as (client, _):
        await client.join(session_s)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.receive_all)
            nursery.start_soon(_heartbeats, client)
            for offset in range(1, round(STORY_S / commit_every_s)):
                await client.send(ApiKey.OFFSET_COMMIT, client.commit_of(offset % 100))
                await trio.sleep(commit_every_s)
            await trio.sleep(EVERY_S)
            nursery.cancel_scope.cancel()
        waits_s = client.waits_s[ApiKey.HEARTBEAT]
        assert len(waits_s) > STORY_S / 4
        assert max(waits_s) <= session_s / 10 + 0.01
        assert set(client.errors(ApiKey.HEARTBEAT)) == {ErrorCode.NONE}
        assert set(client.errors(ApiKey.OFFSET_COMMIT)) == {ErrorCode.NONE}
        assert offsets.written <= STORY_S / min(session_s / 10, EVERY_S) + 3


async def _heartbeats(client: Client) -> None:
    while True:
        await client.send(ApiKey.HEARTBEAT, client.heartbeat())
        await trio.sleep(3)


async def test_acknowledged_commit_is_in_log(autojump_clock: MockClock) -> None:
    _, offsets, service = await farm_group()
    async with connected(service) as (client, _):
        await client.join()
        for offset in (3, 5, 9, 7):
            await client.send(ApiKey.OFFSET_COMMIT, client.commit_of(offset))
        for committed in (3, 7, 7, 7):
            await client.receive()
            assert offsets.committed("g")["farm"].offset == committed
        assert client.errors(ApiKey.OFFSET_COMMIT) == [ErrorCode.NONE] * 4


class BlockedService:
    """A service whose commits wait until the test releases them. Only ListGroups does not overlap other requests."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.release = trio.Event()
        self.error: Exception | None = None

    def apis(self) -> Mapping[int, ServedApi]:
        """Return OffsetCommit, Heartbeat and ListGroups."""
        return {
            ApiKey.OFFSET_COMMIT: ServedApi(2, 9, self.commit, overlaps=True),
            ApiKey.HEARTBEAT: ServedApi(0, 4, self.heartbeat, overlaps=True),
            ApiKey.LIST_GROUPS: ServedApi(0, 5, self.list),
        }

    def features(self) -> Mapping[str, tuple[int, int, int | None]]:
        return {}

    async def commit(self, request: groups.OffsetCommitRequest, caller: Caller) -> groups.OffsetCommitResponse:
        self.started.append(f"commit {request.topics[0].partitions[0].committed_offset}")
        await self.release.wait()
        if self.error is not None:
            raise self.error
        return groups.OffsetCommitResponse(topics=())

    async def heartbeat(self, request: groups.HeartbeatRequest, caller: Caller) -> groups.HeartbeatResponse:
        self.started.append("heartbeat")
        return groups.HeartbeatResponse()

    async def list(self, request: groups.ListGroupsRequest, caller: Caller) -> groups.ListGroupsResponse:
        self.started.append("list")
        return groups.ListGroupsResponse(groups=())


async def test_overlapping_requests_start_in_order() -> None:
    service = BlockedService()
    async with connected(service) as (client, listener):
        for offset in range(5):
            await client.send(ApiKey.OFFSET_COMMIT, client.commit_of(offset))
        await client.send(ApiKey.HEARTBEAT, client.heartbeat())
        await client.send(ApiKey.LIST_GROUPS, groups.ListGroupsRequest())
        await client.send(ApiKey.HEARTBEAT, client.heartbeat())
        await trio.testing.wait_all_tasks_blocked()
        assert service.started == [*(f"commit {offset}" for offset in range(5)), "heartbeat"]
        service.release.set()
        for _ in client.sent:
            await client.receive()
        assert service.started[6:] == ["list", "heartbeat"]
        assert listener.counters[ListenerEvent.REQUESTS_ANSWERED] == 8


async def test_overlapping_requests_per_connection_are_bounded() -> None:
    service = BlockedService()
    async with connected(service) as (client, _):
        for offset in range(2 * MAX_OVERLAPPING):
            await client.send(ApiKey.OFFSET_COMMIT, client.commit_of(offset))
        await trio.testing.wait_all_tasks_blocked()
        assert len(service.started) == MAX_OVERLAPPING
        service.release.set()
        for _ in client.sent:
            await client.receive()


async def test_commit_to_busy_service_closes_connection() -> None:
    service = BlockedService()
    service.error = ServerBusyError("busy")
    async with connected(service) as (client, listener):
        await client.send(ApiKey.OFFSET_COMMIT, client.commit_of(1))
        await trio.testing.wait_all_tasks_blocked()
        service.release.set()
        with pytest.raises(trio.BrokenResourceError):
            await client.receive()
        assert listener.counters[ListenerClose.SERVER_BUSY] == 1


async def test_commits_without_members_wait_at_most_one_second(autojump_clock: MockClock) -> None:
    _, offsets, service = await farm_group()
    async with connected(service) as (client, _):
        for offset in (3, 5, 9):
            await client.send(ApiKey.OFFSET_COMMIT, client.commit_of(offset))
        for _ in client.sent:
            await client.receive()
        assert client.waits_s[ApiKey.OFFSET_COMMIT] == [0, EVERY_S, EVERY_S]
        assert offsets.written == 2


async def test_uncommitted_commit_times_out(autojump_clock: MockClock) -> None:
    offsets = MemoryOffsets()
    topic = MemoryTopic()
    topic.offsets = offsets
    options = GroupOptions(first_delay_ms=0)
    async with connected(GroupService(topic, options)) as (client, _):
        await client.join()
        offsets.wait_s = 10 * STORY_S
        commits = 5
        for offset in range(commits):
            await client.send(ApiKey.OFFSET_COMMIT, client.commit_of(offset))
        for _ in range(commits):
            await client.receive()
        assert set(client.errors(ApiKey.OFFSET_COMMIT)) == {ErrorCode.REQUEST_TIMED_OUT}
        longest_s = SESSION_S / 10 + options.commit_timeout_ms / 1000
        assert max(client.waits_s[ApiKey.OFFSET_COMMIT]) == pytest.approx(longest_s)
