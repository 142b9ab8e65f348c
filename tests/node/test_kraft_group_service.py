"""Consumer groups in the service of a listener: coordination by the leader, a change of leader, offsets in the log."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from consensus.protocols.kafka import (
    ConsumerService,
    GroupOptions,
    GroupService,
    ListenerOptions,
    ProduceRefusedError,
    ProduceService,
    Service,
    open_listener,
)
from consensus.protocols.kafka.connections.service import Caller
from consensus.protocols.kafka.wire import messages_groups as groups
from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey, ErrorCode
from consensus.protocols.kafka.wire.codec import decode_response, encode_response
from consensus.server.errors import ServerBusyError, ServerStoppedError
from tests.node.kraft_topic import MemoryOffsets, MemoryTopic, caller

HEARTBEAT_S = 3.0
SESSION_MS = 10_000


def coordinating(offsets: MemoryOffsets | None = None, epoch: int = 5) -> MemoryTopic:
    topic = MemoryTopic()
    topic.offsets = offsets or MemoryOffsets()
    topic.epoch = epoch
    return topic


def join_of(member_id: str = "", **given: object) -> groups.JoinGroupRequest:
    fields: dict[str, object] = {
        "group_id": "g",
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": (groups.JoinGroupRequestProtocol(name="range", metadata=b"about me"),),
    }
    return groups.JoinGroupRequest(member_id=member_id, **(fields | given))  # type: ignore[arg-type]


def commit_of(offset: int, member: tuple[str, int] = ("", -1), **given: object) -> groups.OffsetCommitRequest:
    fields: dict[str, object] = {"topic": "farm", "partition": 0, "metadata": "m", "group": "g"} | given
    part = groups.OffsetCommitRequestPartition(
        partition_index=int(str(fields["partition"])),
        committed_offset=offset,
        committed_leader_epoch=5,
        committed_metadata=str(fields["metadata"]),
    )
    topic = groups.OffsetCommitRequestTopic(name=str(fields["topic"]), partitions=(part,))
    return groups.OffsetCommitRequest(
        group_id=str(fields["group"]), member_id=member[0], generation_id_or_member_epoch=member[1], topics=(topic,)
    )


async def committed(service: GroupService, offset: int, member: tuple[str, int] = ("", -1), **given: object) -> int:
    response = await service.offset_commit(commit_of(offset, member, **given), caller(9))
    return response.topics[0].partitions[0].error_code


async def committed_offset(service: GroupService, group: str = "g", client: Caller | None = None) -> int:
    request_body = groups.OffsetFetchRequestGroup(
        group_id=group, topics=(groups.OffsetFetchRequestTopic(name="farm", partition_indexes=(0,)),)
    )
    response = await service.offset_fetch(groups.OffsetFetchRequest(groups=(request_body,)), client or caller(9))
    assert response.groups[0].error_code == ErrorCode.NONE
    return response.groups[0].topics[0].partitions[0].committed_offset


async def described(service: GroupService, version: int = 5, group: str = "g") -> groups.DescribeGroupsResponseGroup:
    response = await service.describe_groups(groups.DescribeGroupsRequest(groups=(group,)), caller(version))
    return response.groups[0]


class Consumer:
    """A client that follows the protocol: it joins, assigns if it leads, and sends heartbeats until a new round."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.member_id = ""
        self.generation = -1
        self.reads: bytes | None = None
        """The assignment; None between two rounds."""
        self.errors: list[int] = []
        """The received errors."""

    @property
    def member(self) -> tuple[str, int]:
        return self.member_id, self.generation

    async def run(self, find: Callable[[], GroupService]) -> None:
        """Be a member until canceled; `find` returns the coordinator."""
        while True:
            try:
                await self._join(find())
                while True:
                    _raise_for(await self._heartbeat(find()))
                    await trio.sleep(HEARTBEAT_S)
            except _ReceivedError as errors:
                self.errors.append(errors.code)
            self.reads = None
            if self.errors[-1] == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            await trio.sleep(0.1)

    async def _join(self, service: GroupService) -> None:
        joined = await service.join_group(join_of(self.member_id), caller(5))
        self.member_id = joined.member_id
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            joined = await service.join_group(join_of(self.member_id), caller(5))
        _raise_for(joined.error_code)
        self.generation = joined.generation_id
        shares = tuple(
            groups.SyncGroupRequestAssignment(member_id=each.member_id, assignment=b"nothing" if at else b"partition 0")
            for at, each in enumerate(joined.members)
        )
        request_body = groups.SyncGroupRequest(
            group_id="g", generation_id=self.generation, member_id=self.member_id, assignments=shares
        )
        synced = await service.sync_group(request_body, caller(5))
        _raise_for(synced.error_code)
        self.reads = synced.assignment

    async def _heartbeat(self, service: GroupService) -> int:
        request_body = groups.HeartbeatRequest(group_id="g", generation_id=self.generation, member_id=self.member_id)
        return (await service.heartbeat(request_body, caller(4))).error_code

    async def leave(self, service: GroupService) -> int:
        leaving = groups.LeaveGroupRequestMember(member_id=self.member_id)
        response = await service.leave_group(groups.LeaveGroupRequest(group_id="g", members=(leaving,)), caller(5))
        return response.members[0].error_code


class _ReceivedError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _raise_for(error_code: int) -> None:
    if error_code != ErrorCode.NONE:
        raise _ReceivedError(error_code)


@asynccontextmanager
async def running(service: GroupService, *names: str) -> AsyncIterator[list[Consumer]]:
    consumers = [Consumer(name) for name in names]
    async with trio.open_nursery() as nursery:
        for consumer in consumers:
            nursery.start_soon(consumer.run, lambda: service)
        await trio.sleep(5)
        yield consumers
        nursery.cancel_scope.cancel()


async def test_group_apis_need_topic_with_offsets() -> None:
    topic = MemoryTopic()
    service = GroupService(topic)
    assert [*service.apis()] == [ApiKey.LIST_GROUPS]
    assert (await service.list_groups(groups.ListGroupsRequest(), caller(5))).error_code == ErrorCode.NONE
    topic.offsets = MemoryOffsets()
    assert {key: (api.min_version, api.max_version) for key, api in service.apis().items()} == {
        key: VERSIONS[key] for key in (*range(ApiKey.OFFSET_COMMIT, ApiKey.LIST_GROUPS + 1),)
    }


async def test_coordinator_is_leader_of_log() -> None:
    topic = coordinating()
    topic.controller_id = 2
    service = GroupService(topic)
    one = await service.find_coordinator(groups.FindCoordinatorRequest(key="g"), caller(3))
    assert (one.node_id, one.host, one.port) == (2, "127.0.0.1", 9093)
    several = await service.find_coordinator(groups.FindCoordinatorRequest(coordinator_keys=("g", "h")), caller(6))
    assert [(each.key, each.node_id) for each in several.coordinators] == [("g", 2), ("h", 2)]


@pytest.mark.parametrize(
    ("leader", "key_type", "key", "error"),
    [
        (-1, 0, "g", ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (7, 0, "g", ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (1, 0, "", ErrorCode.INVALID_GROUP_ID),
        (1, 1, "t", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
    ids=["no-leader", "leader-without-listener", "no-name", "transactions"],
)
async def test_unknown_coordinator_is_an_error(leader: int, key_type: int, key: str, error: ErrorCode) -> None:
    topic = coordinating()
    topic.controller_id = leader
    request = groups.FindCoordinatorRequest(key=key, key_type=key_type)
    assert (await GroupService(topic).find_coordinator(request, caller(3))).error_code == error


async def test_partition_is_assigned_to_one_of_two_members(autojump_clock: MockClock) -> None:
    service = GroupService(coordinating())
    async with running(service, "a", "b") as (a, b):
        assert sorted((a.reads or b"", b.reads or b"")) == [b"nothing", b"partition 0"]
        assert a.generation == b.generation
        await trio.sleep(120)
        assert (a.errors, b.errors) == ([], [])


async def test_remaining_member_reads_after_reader_leaves(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    service = GroupService(coordinating())
    a, b = Consumer("a"), Consumer("b")
    scope = await nursery.start(_run_within_scope, a, service)
    await trio.sleep(3)
    nursery.start_soon(b.run, lambda: service)
    await trio.sleep(10)
    assert (a.reads, b.reads) == (b"partition 0", b"nothing")
    scope.cancel()
    assert await a.leave(service) == ErrorCode.NONE
    await trio.sleep(2 * HEARTBEAT_S)
    assert b.reads == b"partition 0"


async def test_remaining_member_reads_after_session_timeout(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    service = GroupService(coordinating())
    a, b = Consumer("a"), Consumer("b")
    scope = await nursery.start(_run_within_scope, a, service)
    await trio.sleep(3)
    nursery.start_soon(b.run, lambda: service)
    await trio.sleep(10)
    scope.cancel()
    await trio.sleep(SESSION_MS / 1000 - HEARTBEAT_S)
    assert b.reads == b"nothing"
    await trio.sleep(3 * HEARTBEAT_S)
    assert b.reads == b"partition 0"
    assert await committed(service, 5, a.member) == ErrorCode.UNKNOWN_MEMBER_ID


async def _run_within_scope(
    consumer: Consumer, service: GroupService, *, task_status: trio.TaskStatus[trio.CancelScope]
) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await consumer.run(lambda: service)


async def test_new_leader_keeps_member_ids_and_offsets(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    offsets = MemoryOffsets()
    former, new = coordinating(offsets), coordinating(offsets, epoch=6)
    new.node_id, new.controller_id = 2, 1
    services = {1: GroupService(former), 2: GroupService(new)}
    a, b = Consumer("a"), Consumer("b")
    for consumer in (a, b):
        nursery.start_soon(consumer.run, lambda: services[former.controller_id])
    await trio.sleep(10)
    ids, generation = (a.member_id, b.member_id), a.generation
    assert await committed(services[1], 41, a.member) == ErrorCode.NONE
    former.controller_id = new.controller_id = 2
    former.epoch = 6
    assert await committed(services[1], 42, a.member) == ErrorCode.NOT_COORDINATOR
    assert await committed(services[2], 42, a.member) == ErrorCode.NONE
    await trio.sleep(15)
    assert (a.member_id, b.member_id) == ids
    assert sorted((a.reads or b"", b.reads or b"")) == [b"nothing", b"partition 0"]
    assert a.generation == b.generation > generation
    assert set(a.errors) == set(b.errors) == {ErrorCode.REBALANCE_IN_PROGRESS}
    assert await committed_offset(services[2]) == 42


async def test_new_leader_knows_member_after_many_rounds(autojump_clock: MockClock) -> None:
    offsets = MemoryOffsets()
    former, new = GroupService(coordinating(offsets)), GroupService(coordinating(offsets, epoch=6))
    async with running(former, "a") as (a,):
        pass
    generation = a.generation
    for round_ in range(2_000):
        changed = groups.JoinGroupRequestProtocol(name="range", metadata=b"%d" % round_)
        generation = (await former.join_group(join_of(a.member_id, protocols=(changed,)), caller(5))).generation_id
    assert generation == a.generation + 2_000
    heartbeat = groups.HeartbeatRequest(group_id="g", generation_id=generation, member_id=a.member_id)
    assert (await new.heartbeat(heartbeat, caller(4))).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert await committed(new, 7, (a.member_id, generation)) == ErrorCode.NONE


async def test_former_member_commits_while_ids_are_reserved(autojump_clock: MockClock) -> None:
    """A consumer that requests a member id from a new leader creates the group there, without members."""
    offsets = MemoryOffsets()
    former, new = GroupService(coordinating(offsets)), GroupService(coordinating(offsets, epoch=6))
    async with running(former, "a") as (a,):
        pass
    assert (await new.join_group(join_of(), caller(5))).error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert await committed(new, 7, a.member) == ErrorCode.NONE
    assert await committed_offset(new) == 7


async def test_reelected_leader_drops_old_members(autojump_clock: MockClock) -> None:
    topic = coordinating()
    service = GroupService(topic)
    async with running(service, "a") as (a,):
        generation = a.generation
        topic.epoch += 2
        await trio.sleep(15)
        assert a.reads == b"partition 0"
        assert a.generation > generation


async def test_removed_members_are_not_taken_over(autojump_clock: MockClock) -> None:
    service = GroupService(coordinating())
    async with running(service, "a") as (a,):
        pass
    await trio.sleep(SESSION_MS / 1000)
    assert await committed(service, 5, a.member) == ErrorCode.UNKNOWN_MEMBER_ID


async def test_waiting_requests_are_refused_on_leader_change(autojump_clock: MockClock) -> None:
    topic = coordinating()
    service = GroupService(topic)
    async with running(service, "a"), trio.open_nursery() as nursery:
        answers: list[groups.JoinGroupResponse] = []

        async def join() -> None:
            answers.append(await service.join_group(join_of(), caller(3)))

        nursery.start_soon(join)
        await trio.testing.wait_all_tasks_blocked()
        topic.controller_id = 2
        await trio.sleep(0.5)
        assert [each.error_code for each in answers] == [ErrorCode.NOT_COORDINATOR]


def _not_leading(topic: MemoryTopic, offsets: MemoryOffsets) -> None:
    del offsets
    topic.controller_id = 2


def _not_ready(topic: MemoryTopic, offsets: MemoryOffsets) -> None:
    del topic
    offsets.is_ready = False


@pytest.mark.parametrize(
    ("change", "error"),
    [(_not_leading, ErrorCode.NOT_COORDINATOR), (_not_ready, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)],
)
async def test_non_coordinator_refuses_every_api(
    change: Callable[[MemoryTopic, MemoryOffsets], None], error: ErrorCode
) -> None:
    offsets = MemoryOffsets()
    topic = coordinating(offsets)
    change(topic, offsets)
    service = GroupService(topic)
    assert (await service.join_group(join_of("x"), caller(5))).error_code == error
    sync = groups.SyncGroupRequest(group_id="g", generation_id=1, member_id="x", assignments=())
    assert (await service.sync_group(sync, caller(5))).error_code == error
    heartbeat = groups.HeartbeatRequest(group_id="g", generation_id=1, member_id="x")
    assert (await service.heartbeat(heartbeat, caller(4))).error_code == error
    for version in (2, 3):
        leave = groups.LeaveGroupRequest(group_id="g", member_id="x", members=())
        assert (await service.leave_group(leave, caller(version))).error_code == error
    assert await committed(service, 1) == error
    fetch = groups.OffsetFetchRequest(
        group_id="g",
        topics=(groups.OffsetFetchRequestTopic(name="farm", partition_indexes=(0,)),),
        groups=(groups.OffsetFetchRequestGroup(group_id="g"),),
    )
    assert (await service.offset_fetch(fetch, caller(8))).groups[0].error_code == error
    before = await service.offset_fetch(fetch, caller(1))
    assert before.error_code == before.topics[0].partitions[0].error_code == error
    assert (await described(service)).error_code == error


@pytest.mark.parametrize(
    ("change", "error"), [(_not_leading, ErrorCode.NONE), (_not_ready, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)]
)
async def test_list_groups_of_non_coordinator_is_empty(
    change: Callable[[MemoryTopic, MemoryOffsets], None], error: ErrorCode
) -> None:
    offsets = MemoryOffsets()
    topic = coordinating(offsets)
    service = GroupService(topic)
    assert await committed(service, 1) == ErrorCode.NONE
    change(topic, offsets)
    for version in range(VERSIONS[ApiKey.LIST_GROUPS][1] + 1):
        listed = await service.list_groups(groups.ListGroupsRequest(), caller(version))
        assert (listed.error_code, listed.groups) == (error, ())


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "g" * 256}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "m" * 601}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_instance_id": "i" * 256}, ErrorCode.INVALID_REQUEST),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (
            {"protocols": tuple(groups.JoinGroupRequestProtocol(name=str(at), metadata=b"") for at in range(33))},
            ErrorCode.INVALID_REQUEST,
        ),
        (
            {"protocols": (groups.JoinGroupRequestProtocol(name="range", metadata=bytes(16 * 1024)),)},
            ErrorCode.MESSAGE_TOO_LARGE,
        ),
    ],
)
@pytest.mark.parametrize("version", [0, 9])
async def test_invalid_join_is_refused_in_every_version(
    given: dict[str, object], error: ErrorCode, version: int
) -> None:
    service = GroupService(coordinating())
    fields = {"member_id": ""} | given
    response = await service.join_group(join_of(**fields), caller(version))  # type: ignore[arg-type]
    assert response.error_code == error
    frame = encode_response(ApiKey.JOIN_GROUP, version, 1, response)
    assert decode_response(ApiKey.JOIN_GROUP, version, frame)[1].error_code == error
    assert (await service.list_groups(groups.ListGroupsRequest(), caller(5))).groups == ()


async def test_members_and_groups_are_limited(autojump_clock: MockClock) -> None:
    service = GroupService(coordinating(), GroupOptions(max_groups=2, max_members=3, max_members_of_all=4))

    async def join(group: str) -> int:
        return (await service.join_group(join_of(group_id=group), caller(4))).error_code

    assert [await join("g") for _ in range(4)] == [ErrorCode.MEMBER_ID_REQUIRED] * 3 + [
        ErrorCode.GROUP_MAX_SIZE_REACHED
    ]
    assert [await join("h") for _ in range(2)] == [ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.GROUP_MAX_SIZE_REACHED]
    assert await join("i") == ErrorCode.POLICY_VIOLATION
    await trio.sleep(SESSION_MS / 1000)
    assert await join("i") == ErrorCode.MEMBER_ID_REQUIRED


async def test_join_refused_for_space_does_not_create_group() -> None:
    """The group would count for its user, and be closed to other users, until the next leader."""
    service = GroupService(coordinating(), GroupOptions(max_members_of_user=1))
    assert (await service.join_group(join_of(), caller(4))).error_code == ErrorCode.MEMBER_ID_REQUIRED
    refused = await service.join_group(join_of(group_id="other"), caller(4))
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    listed = (await service.list_groups(groups.ListGroupsRequest(), caller(5))).groups
    assert [each.group_id for each in listed] == ["g"]


async def test_group_requests_of_other_user_are_refused(autojump_clock: MockClock) -> None:
    service = GroupService(coordinating())
    alice, bob = (replace(caller(3), principal=f"User:{name}") for name in ("alice", "bob"))
    # Given a group with a member and an offset of alice
    joined = await service.join_group(join_of(), alice)
    member_id, generation = joined.member_id, joined.generation_id
    beat = groups.HeartbeatRequest(group_id="g", generation_id=generation, member_id=member_id)
    sync = groups.SyncGroupRequest(group_id="g", generation_id=generation, member_id=member_id, assignments=())
    leave = groups.LeaveGroupRequest(group_id="g", members=(groups.LeaveGroupRequestMember(member_id=member_id),))
    await service.sync_group(sync, alice)
    # When bob sends requests, even with the ids of alice's member
    commit = await service.offset_commit(commit_of(900, (member_id, generation)), bob)
    errors = [
        (await service.join_group(join_of(), bob)).error_code,
        (await service.join_group(join_of(member_id), bob)).error_code,
        (await service.sync_group(sync, bob)).error_code,
        (await service.heartbeat(beat, bob)).error_code,
        (await service.leave_group(leave, bob)).error_code,
        commit.topics[0].partitions[0].error_code,
    ]
    # Then all of them are refused, and alice's member continues to read
    assert errors == [ErrorCode.GROUP_AUTHORIZATION_FAILED] * len(errors)
    assert await committed_offset(service, client=replace(alice, api_version=9)) == -1
    assert (await service.heartbeat(beat, alice)).error_code == ErrorCode.NONE


async def test_group_without_members_keeps_its_user() -> None:
    service = GroupService(coordinating())
    alice, bob = (replace(caller(9), principal=f"User:{name}") for name in ("alice", "bob"))
    await service.offset_commit(commit_of(7), alice)
    commit = await service.offset_commit(commit_of(900), bob)
    assert commit.topics[0].partitions[0].error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert await committed_offset(service, client=alice) == 7


@pytest.mark.parametrize("version", [1, 9])
async def test_offset_fetch_of_other_users_group_is_refused(version: int) -> None:
    service = GroupService(coordinating())
    alice, bob = (replace(caller(version), principal=f"User:{name}") for name in ("alice", "bob"))
    await service.offset_commit(commit_of(7), alice)
    topics = (groups.OffsetFetchRequestTopic(name="farm", partition_indexes=(0,)),)
    one = groups.OffsetFetchRequestGroup(group_id="g", topics=topics)
    request_body = (
        groups.OffsetFetchRequest(groups=(one,))
        if version == 9
        else groups.OffsetFetchRequest(group_id="g", topics=topics)
    )
    answer = await service.offset_fetch(request_body, bob)
    found = answer.groups[0] if version == 9 else answer
    assert found.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    [part] = found.topics[0].partitions
    assert (part.committed_offset, part.error_code) == (-1, ErrorCode.GROUP_AUTHORIZATION_FAILED)


async def test_groups_of_other_user_are_not_described(autojump_clock: MockClock) -> None:
    service = GroupService(coordinating())
    alice, bob = (replace(caller(3), principal=f"User:{name}") for name in ("alice", "bob"))
    await service.join_group(join_of(), alice)
    await service.offset_commit(commit_of(7, group="offsets"), alice)
    request_body = groups.DescribeGroupsRequest(groups=("g", "offsets", "none"))
    found = (await service.describe_groups(request_body, bob)).groups
    refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert [each.error_code for each in found] == [refused, refused, ErrorCode.NONE]
    assert [each.members for each in found] == [(), (), ()]
    assert (await service.describe_groups(request_body, alice)).groups[0].members


async def test_groups_of_other_user_are_not_listed(autojump_clock: MockClock) -> None:
    service = GroupService(coordinating())
    alice, bob = (replace(caller(3), principal=f"User:{name}") for name in ("alice", "bob"))
    await service.join_group(join_of(), alice)
    await service.offset_commit(commit_of(7, group="offsets"), alice)
    await service.offset_commit(commit_of(7, group="of bob"), bob)
    listed = {
        client.principal: [
            each.group_id for each in (await service.list_groups(groups.ListGroupsRequest(), client)).groups
        ]
        for client in (alice, bob)
    }
    assert listed == {"User:alice": ["g", "offsets"], "User:bob": ["of bob"]}


async def test_groups_per_user_are_limited(autojump_clock: MockClock) -> None:
    service = GroupService(coordinating(), GroupOptions(max_groups=2, max_members_of_user=3))
    alice, bob = (replace(caller(4), principal=f"User:{name}") for name in ("alice", "bob"))
    errors = [(await service.join_group(join_of(group_id=f"bob {n}"), bob)).error_code for n in range(3)]
    assert errors == [ErrorCode.MEMBER_ID_REQUIRED] * 2 + [ErrorCode.POLICY_VIOLATION]
    errors = [(await service.join_group(join_of(group_id="bob 0"), bob)).error_code for _ in range(2)]
    assert errors == [ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.GROUP_MAX_SIZE_REACHED]
    assert (await service.join_group(join_of(group_id="alice"), alice)).error_code == ErrorCode.MEMBER_ID_REQUIRED


async def test_client_without_group_membership_commits_offsets() -> None:
    service = GroupService(coordinating())
    assert await committed_offset(service) == -1
    assert await committed(service, 7) == ErrorCode.NONE
    assert await committed_offset(service) == 7
    fetch = groups.OffsetFetchRequest(group_id="g", topics=None)
    [topic] = (await service.offset_fetch(fetch, caller(7))).topics
    [part] = topic.partitions
    assert (topic.name, part.committed_offset, part.committed_leader_epoch, part.metadata) == ("farm", 7, 5, "m")


async def test_non_member_commit_to_group_with_members_is_refused(autojump_clock: MockClock) -> None:
    service = GroupService(coordinating())
    async with running(service, "a") as (a,):
        assert await committed(service, 7) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await committed(service, 7, a.member) == ErrorCode.NONE


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"topic": "other"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"metadata": "m" * 1_025}, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ({"offset": -1}, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
    ],
)
async def test_invalid_offset_commit_is_refused(given: dict[str, object], error: ErrorCode) -> None:
    offsets = MemoryOffsets()
    service = GroupService(coordinating(offsets))
    fields: dict[str, object] = {"offset": 1} | given
    assert await committed(service, **fields) == error  # type: ignore[arg-type]
    assert not offsets.stored


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (ProduceRefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, ""), ErrorCode.NOT_COORDINATOR),
        (ProduceRefusedError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, ""), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ProduceRefusedError(ErrorCode.POLICY_VIOLATION, ""), ErrorCode.POLICY_VIOLATION),
        (ServerBusyError("busy"), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ServerStoppedError("over"), ErrorCode.NOT_COORDINATOR),
    ],
)
async def test_failed_commit_is_not_acknowledged(raised: Exception, error: ErrorCode) -> None:
    offsets = MemoryOffsets()
    offsets.error = raised
    assert await committed(GroupService(coordinating(offsets)), 1) == error


async def test_slow_commit_times_out(autojump_clock: MockClock) -> None:
    offsets = MemoryOffsets()
    offsets.wait_s = 60
    assert await committed(GroupService(coordinating(offsets)), 1) == ErrorCode.REQUEST_TIMED_OUT


async def test_member_with_waiting_commit_keeps_session(autojump_clock: MockClock) -> None:
    offsets = MemoryOffsets()
    service = GroupService(coordinating(offsets), GroupOptions(first_delay_ms=0))
    joined = await service.join_group(join_of(), caller(3))
    member = (joined.member_id, joined.generation_id)
    sync = groups.SyncGroupRequest(group_id="g", generation_id=member[1], member_id=member[0], assignments=())
    assert (await service.sync_group(sync, caller(5))).error_code == ErrorCode.NONE
    offsets.wait_s = 0.9 * SESSION_MS / 1000
    for _ in range(3):
        assert await committed(service, 1, member) == ErrorCode.NONE


async def test_groups_are_listed_and_described(autojump_clock: MockClock) -> None:
    service = GroupService(coordinating())
    await committed(service, 3, group="only offsets")
    async with running(service, "a") as (a,):
        listed = await service.list_groups(groups.ListGroupsRequest(), caller(5))
        assert [(each.group_id, each.group_state, each.protocol_type) for each in listed.groups] == [
            ("g", "Stable", "consumer"),
            ("only offsets", "Empty", ""),
        ]
        empty = await service.list_groups(groups.ListGroupsRequest(states_filter=("empty",)), caller(5))
        assert [each.group_id for each in empty.groups] == ["only offsets"]
        group = await described(service)
        assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
        [member] = group.members
        assert (member.member_id, member.client_id, member.client_host) == (a.member_id, "test", "/127.0.0.1")
        assert (member.member_metadata, member.member_assignment) == (b"about me", b"partition 0")
    assert (await described(service, group="only offsets")).group_state == "Empty"
    assert (await described(service, group="none")).group_state == "Dead"
    assert (await described(service, 6, "none")).error_code == ErrorCode.GROUP_ID_NOT_FOUND


_CONSUME = """
import sys
from kafka import KafkaConsumer
def read(count):
    consumer = KafkaConsumer("farm", bootstrap_servers="127.0.0.1:" + sys.argv[1], group_id="g",
                             auto_offset_reset="earliest", enable_auto_commit=False)
    values = []
    while len(values) < count:
        for records in consumer.poll(timeout_ms=200, max_records=count - len(values)).values():
            values += [record.value.decode() for record in records]
    consumer.commit()
    consumer.close()
    return values
print(read(3), read(2))
"""


async def test_kafka_python_group_resumes_at_committed_offset() -> None:
    topic = coordinating()
    topic.write(b"0", b"1", b"2", b"3", b"4")
    services: list[Service] = [
        ConsumerService(topic),
        ProduceService(topic),
        GroupService(topic, GroupOptions(first_delay_ms=100)),
    ]
    with trio.fail_after(60):
        async with open_listener(services, ListenerOptions()) as listener:
            topic.is_served_at(listener.port)
            command = [sys.executable, "-c", _CONSUME, str(listener.port)]
            ended = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert ended.stdout.decode().strip() == "['0', '1', '2'] ['3', '4']", ended.stderr.decode()
    assert topic.offsets is not None
    assert topic.offsets.stored["g"]["farm"].offset == 5
