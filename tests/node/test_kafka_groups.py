"""Offsets of consumer groups in the farm's log: which commits write an entry, how often, and when they get a reply."""

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from bridge.api.alarms import KAFKA_LEVEL_LOW
from bridge.core.log.feature_level import BOUNDS_LEVEL, REQIDS_LEVEL
from bridge.core.log.records import GroupOffset
from bridge.core.state.kafka_clients import GROUP_EXPIRY_MS, GROUPS_MAX, KafkaClients, NotedOffset
from bridge.node.founded_farm import CurrentFarm
from bridge.node.kafka.group_offsets import EVERY_S, RENEW_MS, FarmGroupOffsets
from consensus import Outcome, ServerBusyError, ServerStoppedError
from consensus.protocols.kafka import CommittedOffset, ErrorCode, ProduceRefusedError
from tests.node.farm_stage import OTHER, OWN, Stage
from tests.node.kafka_farm import farm_of, stage_at

TOPIC, GROUP = "farm-log", "readers"


pytestmark = pytest.mark.usefixtures("machine_clock")


async def leading_stage() -> Stage:
    stage = stage_at()
    await stage.append(b'{"note": 0}')
    return stage


def offsets_of(stage: Stage) -> FarmGroupOffsets:
    return FarmGroupOffsets(CurrentFarm(farm_of(stage)), TOPIC, stage.alarms)


def at(offset: int, metadata: str = "") -> dict[str, CommittedOffset]:
    return {TOPIC: CommittedOffset(offset, 1, metadata)}


def written_offsets(stage: Stage, group: str = GROUP) -> list[int]:
    """Return the offsets of the group's entries."""
    records = [record for _, record in stage.records(GroupOffset)]
    return [each.offset for each in records if isinstance(each, GroupOffset) and each.group == group]


async def test_committed_offset_is_entry_known_to_every_server(autojump_clock: MockClock) -> None:
    stage = await leading_stage()
    offsets = offsets_of(stage)
    assert offsets.committed(GROUP) == {}
    await offsets.commit(GROUP, {TOPIC: CommittedOffset(1, 3, "text")}, None)
    assert offsets.committed(GROUP) == {TOPIC: CommittedOffset(1, 3, "text")}
    assert (offsets.groups(), offsets.written) == ((GROUP,), 1)
    assert trio.current_time() == 0, "the first of a group is written immediately"


async def test_commits_within_interval_write_only_newest(autojump_clock: MockClock) -> None:
    stage = await leading_stage()
    offsets, replies = offsets_of(stage), []

    async def commit(offset: int) -> None:
        await offsets.commit(GROUP, at(offset), None)
        replies.append((offset, trio.current_time()))

    for number in range(10):
        await stage.append(b'{"note": %d}' % number)
    async with trio.open_nursery() as nursery:
        for offset in range(1, 11):
            nursery.start_soon(commit, offset)
            await wait_all_tasks_blocked()
    assert written_offsets(stage) == [1, 10]
    assert sorted(replies) == [(1, 0.0), *((offset, EVERY_S) for offset in range(2, 11))]


async def test_commits_of_other_groups_do_not_wait(autojump_clock: MockClock) -> None:
    stage = await leading_stage()
    offsets = offsets_of(stage)
    for group in ("one", "two", "three"):
        await offsets.commit(group, at(1), None)
    assert trio.current_time() == 0


async def test_canceled_commit_does_not_delay_next(autojump_clock: MockClock) -> None:
    stage = await leading_stage()
    offsets = offsets_of(stage)
    await stage.append(b"{}")
    await offsets.commit(GROUP, at(1), None)
    with trio.move_on_after(1):
        await offsets.commit(GROUP, at(2), None)
    assert written_offsets(stage) == [1]
    await offsets.commit(GROUP, at(2), None)
    assert written_offsets(stage) == [1, 2]
    assert trio.current_time() == EVERY_S


async def test_unchanged_offset_is_not_written(autojump_clock: MockClock) -> None:
    # Given a group that has read the whole log
    stage = await leading_stage()
    offsets = offsets_of(stage)
    await offsets.commit(GROUP, at(1), None)
    end = len(stage.log)
    # When it commits the same offset again, and then the end of the log, after its own entry
    for offset in (1, end):
        await offsets.commit(GROUP, at(offset), None)
    # Then no entry is added; a commit with other metadata, or beyond a record, adds one
    assert written_offsets(stage) == [1]
    await offsets.commit(GROUP, at(1, "text"), None)
    assert written_offsets(stage) == [1, 1]
    await stage.append(b'{"note": 2}')
    await offsets.commit(GROUP, at(len(stage.log), "text"), None)
    assert written_offsets(stage) == [1, 1, len(stage.log) - 1]
    # And a commit that moves the offset back adds one
    await offsets.commit(GROUP, at(0, "text"), None)
    assert written_offsets(stage)[-1] == 0


async def test_unchanged_offset_is_renewed_before_expiry(autojump_clock: MockClock) -> None:
    stage = await leading_stage()
    offsets = offsets_of(stage)
    await offsets.commit(GROUP, at(1), None)
    farm = stage.applied_state.farm
    farm.state = replace(farm.state, log_time_ms=farm.state.log_time_ms + RENEW_MS + 1)
    await offsets.commit(GROUP, at(1), None)
    assert written_offsets(stage) == [1, 1]


async def test_offset_of_expired_group_is_not_returned(autojump_clock: MockClock) -> None:
    """Any user may begin a group of this name, and must not get the offset of the former owner."""
    stage = await leading_stage()
    offsets = offsets_of(stage)
    await offsets.commit(GROUP, at(1, "of alice"), "User:alice")
    farm = stage.applied_state.farm
    farm.state = replace(farm.state, log_time_ms=farm.state.log_time_ms + GROUP_EXPIRY_MS + 1)
    assert offsets.may_use(GROUP, "User:bob")
    assert offsets.committed(GROUP) == {}
    assert offsets.groups() == ()


async def test_leader_coordinates_after_applying_entry_of_its_term() -> None:
    stage = await leading_stage()
    offsets = offsets_of(stage)
    assert offsets.is_coordinator()
    stage.lead(OWN)
    assert not offsets.is_coordinator(), "entries of earlier leaders may not be applied"
    stage.lead(OTHER)
    assert not offsets.is_coordinator()
    assert not FarmGroupOffsets(CurrentFarm(), TOPIC, stage.alarms).is_coordinator()


async def test_commit_without_outcome_committed_is_refused(autojump_clock: MockClock) -> None:
    stage = await leading_stage()
    offsets = offsets_of(stage)

    async def refusal(group: str = GROUP) -> ErrorCode:
        with pytest.raises(ProduceRefusedError) as caught:
            await offsets.commit(group, at(1), None)
        return ErrorCode(caught.value.error_code)

    for outcome, error in (
        (Outcome.NOT_LEADER, ErrorCode.NOT_COORDINATOR),
        (Outcome.UNKNOWN, ErrorCode.REQUEST_TIMED_OUT),
    ):
        stage.server.outcome = outcome
        assert await refusal() is error
    stage.server.outcome = Outcome.BUSY
    with pytest.raises(ServerBusyError):
        await offsets.commit(GROUP, at(1), None)
    stage.server.outcome = Outcome.COMMITTED
    assert await refusal("x" * 300) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    farm = stage.applied_state.farm
    noted = {f"group-{n}": NotedOffset(1, 1, "", farm.state.log_time_ms) for n in range(GROUPS_MAX)}
    farm.state = replace(farm.state, kafka=KafkaClients(groups=noted))
    assert await refusal() is ErrorCode.POLICY_VIOLATION
    farm.state = replace(farm.state, level=REQIDS_LEVEL)
    assert await refusal() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "feature level 3" in (stage.alarm(KAFKA_LEVEL_LOW.kind) or "")
    stage.lead(OTHER)
    farm.state = replace(farm.state, level=4)
    assert await refusal("group-1") is ErrorCode.NOT_COORDINATOR
    with pytest.raises(ServerStoppedError):
        await FarmGroupOffsets(CurrentFarm(), TOPIC, stage.alarms).commit(GROUP, at(1), None)


async def test_held_commit_of_earlier_term_is_refused(autojump_clock: MockClock) -> None:
    """Another coordinator may have written a newer offset between the terms."""
    stage = await leading_stage()
    offsets = offsets_of(stage)
    await stage.append(b"{}")
    await offsets.commit(GROUP, at(2), None)

    async def held() -> None:
        with pytest.raises(ProduceRefusedError) as caught:
            await offsets.commit(GROUP, at(1), None)
        assert caught.value.error_code is ErrorCode.NOT_COORDINATOR

    async with trio.open_nursery() as nursery:
        nursery.start_soon(held)
        await wait_all_tasks_blocked()
        stage.lead(OTHER)
        stage.lead(OWN)
        farm = stage.applied_state.farm
        farm.state = replace(farm.state, applied_term=stage.server.role.term)
        assert offsets.is_coordinator()
    assert written_offsets(stage) == [2]
    await stage.append(b"{}")
    farm.state = replace(farm.state, applied_term=stage.server.role.term)
    await offsets.commit(GROUP, at(4), None)
    assert written_offsets(stage) == [2, 4], "a commit of the new term is written"


async def test_offsets_of_other_topics_are_ignored() -> None:
    stage = await leading_stage()
    await offsets_of(stage).commit(GROUP, {"other": CommittedOffset(1, 1, "")}, None)
    assert written_offsets(stage) == []


async def test_offset_read_at_faster_node_is_committed(autojump_clock: MockClock) -> None:
    # Given a leader that has not applied two committed entries
    stage = stage_at(BOUNDS_LEVEL)
    await stage.append(b"first")
    stage.server.unapplied = (b"second", b"third")
    offsets = offsets_of(stage)
    # When a group commits the end of the log at a node that has applied them, the leader accepts it
    await offsets.commit(GROUP, at(3), None)
    assert offsets.committed(GROUP)[TOPIC].offset == 3


async def test_offset_beyond_committed_log_is_refused(autojump_clock: MockClock) -> None:
    stage = stage_at(BOUNDS_LEVEL)
    await stage.append(b"first")
    with pytest.raises(ProduceRefusedError) as caught:
        await offsets_of(stage).commit(GROUP, at(3), None)
    assert caught.value.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
