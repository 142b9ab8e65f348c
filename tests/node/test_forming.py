"""The process of formation: a promise is on disk before it is advertised, and operators receive replies."""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from bridge.api.alarms import FORMATION
from bridge.core.formation.founding import FormationNotice, FormationState, Promise, founding_of
from bridge.core.formation.member import FarmMember
from bridge.core.formation.messages import FormationPhase, Founded, KnowsCluster
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.membership import forming as forming_module
from bridge.node.membership.forming import FILE_NAME, Forming, UnusableFormationError, load_formation
from bridge.wire.membership.formation_state import encode_formation_state
from tests.effort import each_case
from tests.members import farm_member

A, B, C = (bytes([0] * 7 + [number]) for number in (1, 2, 3))
CLOCK_MS = 1_767_225_600_000


pytestmark = pytest.mark.usefixtures("threads_in_event_loop")


def promise(node_id: bytes, *founders: bytes) -> Promise:
    return Promise(founders, CLOCK_MS, bytes([node_id[7]]) * 16)


def member(node_id: bytes, notice: FormationNotice, *, reachable: bool = True) -> FarmMember:
    return farm_member(node_id, reachable=reachable, notice=notice)


@dataclass
class Founder:
    """Node A during formation, with its advertisements and the state on disk at each advertisement."""

    directory: Path
    expect: int = 2
    cluster_id: bytes | None = None
    advertised: list[FormationNotice] = field(default_factory=list)
    on_disk: list[FormationState] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Load the state from the directory."""
        self.trace = EventLog("node-1", lambda: CLOCK_MS)
        self.alarms = Alarms(self.trace)
        self.forming = Forming(
            self.directory,
            A,
            self.expect,
            load_formation(self.directory, A),
            advertise=self._advertise,
            alarms=self.alarms,
            trace=self.trace,
            cluster_id=self.cluster_id,
        )

    def _advertise(self, notice: FormationNotice) -> None:
        self.advertised.append(notice)
        self.on_disk.append(load_formation(self.directory, A))

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[Forming]:
        """Run formation during the block."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.forming.run)
            yield self.forming
            nursery.cancel_scope.cancel()

    async def exchange_endorsements(self) -> None:
        """Let B promise, and then endorse the same founding as this node."""
        promised = promise(B, A, B)
        self.forming.members_changed((member(B, FormationNotice(promise=promised)),))
        await trio.sleep(5)
        state = load_formation(self.directory, A)
        assert state.endorsed is not None
        assert state.founding is None
        notice = FormationNotice(promise=promised, endorsement=self.advertised[-1].endorsement)
        self.forming.members_changed((member(B, notice),))

    @property
    def alarm(self) -> str | None:
        """Return the text of the formation alarm, or None."""
        return next((each.text for each in self.alarms.active() if each.kind == FORMATION.kind), None)


async def test_promise_is_on_disk_before_advertisement(tmp_path: Path, autojump_clock: MockClock) -> None:
    founder = Founder(tmp_path)
    async with founder.at_work() as forming:
        forming.members_changed((member(B, FormationNotice(proposal=(A, B))),))
        await trio.sleep(5)
        assert forming.phase is FormationPhase.PROMISED
    promised = [each for each in zip(founder.advertised, founder.on_disk, strict=True) if each[0].promise is not None]
    assert promised
    assert all(notice.promise == state.promise for notice, state in promised)


async def test_farm_is_created_after_all_promises_are_on_disk(tmp_path: Path, autojump_clock: MockClock) -> None:
    founder = Founder(tmp_path)
    async with founder.at_work() as forming:
        await founder.exchange_endorsements()
        founded = await forming.until_settled()
        assert isinstance(founded, Founded)
        assert founded.raft_id == 1
        assert load_formation(tmp_path, A).founding == founded.founding
        assert founder.alarm is None


async def test_single_founder_announces_its_farm_last(tmp_path: Path, autojump_clock: MockClock) -> None:
    founder = Founder(tmp_path, expect=1)
    async with founder.at_work() as forming:
        founded = await forming.until_settled()
        await trio.sleep(5)
        assert founder.advertised[-1] == FormationNotice(founding=founded.founding)


async def test_restarted_founder_resumes_its_farm_without_members(tmp_path: Path, autojump_clock: MockClock) -> None:
    founding = founding_of({A: promise(A, A, B), B: promise(B, A, B)})
    (tmp_path / FILE_NAME).write_bytes(
        encode_formation_state(FormationState(promise=promise(A, A, B), founding=founding))
    )
    founder = Founder(tmp_path)
    assert founder.forming.cluster_id == founding.cluster_id, "known before the listener for invitations starts"
    async with founder.at_work() as forming:
        assert (await forming.until_settled()).founding == founding


async def test_node_that_discovers_farm_becomes_observer(tmp_path: Path, autojump_clock: MockClock) -> None:
    foreign = founding_of({B: promise(B, B, C), C: promise(C, B, C)})
    async with Founder(tmp_path, cluster_id=foreign.cluster_id).at_work() as forming:
        forming.members_changed((member(B, FormationNotice(founding=foreign)),))
        assert await forming.until_settled() == KnowsCluster(foreign)
        await trio.sleep(100)
        assert (forming.phase, forming.outcome) == (FormationPhase.OBSERVER, KnowsCluster(foreign))


async def test_withdrawn_promise_allows_another_promise(tmp_path: Path, autojump_clock: MockClock) -> None:
    (tmp_path / FILE_NAME).write_bytes(encode_formation_state(FormationState(promise=promise(A, A, B))))
    founder = Founder(tmp_path)
    async with founder.at_work() as forming:
        await trio.sleep(60)
        assert founder.alarm is not None
        assert forming.withdrawal_refusal() is None
        assert load_formation(tmp_path, A).promise is not None
        assert await forming.withdraw() is None
        assert load_formation(tmp_path, A).promise is None
        assert load_formation(tmp_path, A).withdrawn == (promise(A, A, B),)
        forming.members_changed((member(C, FormationNotice(proposal=(A, C))),))
        await trio.sleep(5)
        again = load_formation(tmp_path, A).promise
        assert again is not None
        assert again.founders == (A, C)
        assert founder.alarm is None


async def test_refused_withdrawal_has_reason_without_alarm(tmp_path: Path, autojump_clock: MockClock) -> None:
    founder = Founder(tmp_path)
    async with founder.at_work() as forming:
        assert await forming.withdraw() == "Withdrawal refused: this node has not made a promise yet."
        assert forming.withdrawal_refusal() == "Withdrawal refused: this node has not made a promise yet."
        await founder.exchange_endorsements()
        await forming.until_settled()
        refusal = await forming.withdraw()
        assert refusal is not None
        assert "the farm is created" in refusal
    assert [event.kind for event in founder.trace.recent(10)] == []


async def test_refused_withdrawal_keeps_active_alarm(tmp_path: Path, autojump_clock: MockClock) -> None:
    founder = Founder(tmp_path)
    async with founder.at_work() as forming:
        # For a farm of two, four nodes allow two disjoint sets of founders.
        forming.members_changed(tuple(member(bytes([0] * 7 + [number]), FormationNotice()) for number in (2, 3, 4)))
        await trio.sleep(1)
        before = founder.alarm
        assert before is not None
        assert await forming.withdraw() is not None
        assert founder.alarm == before


async def test_unwritable_promise_ends_formation_unadvertised(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(forming_module, "replace_file", refuse)
    founder = Founder(tmp_path)
    founder.forming.members_changed((member(B, FormationNotice(promise=promise(B, A, B))),))
    with pytest.raises(UnusableFormationError, match=r"formation\.json cannot be written \(No space left on device\)"):
        await founder.forming.run()
    assert all(notice.promise is None and notice.founding is None for notice in founder.advertised)


@each_case(
    "content", [b"", b"{", b"[]", b"\xff" * 100, b" " * 10_000_000], ids=["empty", "cut", "array", "binary", "huge"]
)
def test_unusable_file_is_refused_unchanged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(UnusableFormationError, match="it has this node's promise, and the node must not promise again"):
        load_formation(tmp_path, A)
    assert (tmp_path / FILE_NAME).read_bytes() == content


@pytest.mark.parametrize(
    "state",
    [
        FormationState(promise=promise(A, A, B)),
        FormationState(promise=promise(A, A, B), founding=founding_of({A: promise(A, A, B), B: promise(B, A, B)})),
        FormationState(withdrawn=(promise(A, A, B),)),
    ],
    ids=["promise", "founding", "withdrawn"],
)
def test_file_of_another_identity_is_refused(tmp_path: Path, state: FormationState) -> None:
    (tmp_path / FILE_NAME).write_bytes(encode_formation_state(state))
    assert load_formation(tmp_path, A) == state
    with pytest.raises(UnusableFormationError, match="was written by another identity"):
        load_formation(tmp_path, C)


async def test_confirmed_cluster_is_on_disk_before_join(tmp_path: Path, autojump_clock: MockClock) -> None:
    mine, forged = (founding_of({each: promise(each, B, C) for each in (B, C)}), founding_of({C: promise(C, C)}))
    founder = Founder(tmp_path)
    async with founder.at_work() as forming:
        forming.members_changed(
            (member(B, FormationNotice(founding=mine)), member(C, FormationNotice(founding=forged)))
        )
        await trio.sleep(5)
        assert (forming.outcome, forming.ignored_count) == (None, 2)
        assert founder.alarm is not None
        assert "garlicfarm confirm-cluster" in founder.alarm
        refusal = await forming.confirm(bytes(16))
        assert refusal is not None
        assert "no member reports cluster" in refusal
        assert await forming.confirm(mine.cluster_id) is None
        assert load_formation(tmp_path, A).confirmed == mine.cluster_id
        await forming.until_settled()
        assert forming.founding == load_formation(tmp_path, A).known == mine
    assert [event.kind for event in founder.trace.recent(10)].count("founding-ignored") == 2


async def test_repeated_rejected_founding_is_counted_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    founder = Founder(tmp_path)
    async with founder.at_work() as forming:
        for _ in range(5):
            forming.members_changed((member(C, FormationNotice(founding=founding_of({C: promise(C, C)}))),))
            await trio.sleep(1)
        assert forming.ignored_count == 1


async def test_different_rejected_foundings_are_counted_with_one_event(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    founder = Founder(tmp_path)
    async with founder.at_work() as forming:
        for clock_ms in range(20):
            founding = founding_of({C: Promise((C,), clock_ms, bytes(16))})
            forming.members_changed((member(C, FormationNotice(founding=founding)),))
            await trio.sleep(1)
        assert forming.ignored_count == 20
    assert [event.kind for event in founder.trace.recent(100)].count("founding-ignored") == 1
