"""What a node keeps of admissions: its own Raft id before it has a log, and all ids after a restart."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from bridge.core.formation.founding import Founder, Founding
from bridge.core.formation.member import FarmMember, MemberStatus, NodeMetadata, RoleHint
from bridge.core.log.records import Admission
from bridge.core.membership.admission import Admitted, Standing, of_founders
from bridge.core.state.farm_state import FarmState
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.membership.admissions import FILE_NAME, AdmissionStore, not_started
from bridge.node.membership.farm_peers import KnownFarm
from bridge.node.membership.forming import UnusableFormationError
from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.membership.own_raft_id import RETRY_S, OwnRaftId
from bridge.node.raft.applied_state import AppliedState
from consensus.core.model import ServerId
from consensus.protocols.garlic_farm.node.dialer import Dialed, PeerAddress
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.peers import ProvenPeer
from consensus.protocols.garlic_farm.wire.proof import ConnectionRole
from consensus.protocols.garlic_farm.wire.upgrade import Identity
from gossip.core.member import NodeId
from gossip.wire.identity import node_id_of
from tests.authored import signed

A, B, C, D = (bytes([number]) * 8 for number in (1, 2, 3, 4))
KEYS = {node_id_of(key): key for key in (bytes([number]) * 32 for number in (5, 6))}
LATER, STRANGER = KEYS
FOUNDING = Founding((Founder(A, 0, b"a" * 16), Founder(B, 0, b"b" * 16)))


@pytest.fixture(autouse=True)
def _disk_in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated clock does not wait for threads, so the disk is written without one."""

    async def run_sync(function: Callable[..., object], *arguments: object) -> object:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


@dataclass
class Told:
    """As much of a member directory, an applied state and a caller as is asked for."""

    words: list[tuple[bytes, int]] = field(default_factory=list)
    """Who tells which Raft id."""
    servers: dict[bytes, int] = field(default_factory=dict)
    """Members that can prove their Raft id when they are called."""
    elsewhere: bytes = b""
    """The node that has the address which all announce, if not their own."""
    called: list[bytes] = field(default_factory=list)
    state: FarmState = field(default_factory=lambda: FarmState(0, admitted=of_founders(FOUNDING.founders)))
    something_new: trio.Event = field(default_factory=trio.Event)

    def announced_admissions(self, node_id: bytes, cluster_id: bytes) -> list[tuple[FarmMember, int]]:
        """What members say."""
        assert (node_id, cluster_id) in {(C, FOUNDING.cluster_id), (A, FOUNDING.cluster_id)}
        return [(listed(teller), raft_id) for teller, raft_id in self.words]

    def address_of(self, node_id: bytes) -> PeerAddress:
        """Every node has an address."""
        return PeerAddress((self.elsewhere or node_id).hex(), 1, None)

    async def dial(self, address: PeerAddress, expected: ServerId | None = None) -> Dialed:
        """A connection to a server that proves who it is; strangers and mistaken ids are refused."""
        node_id = NodeId(bytes.fromhex(address.host))
        self.called.append(node_id)
        await trio.sleep(0.1)
        if self.servers.get(node_id) != expected or expected is None:
            raise GarlicFarmError(Fault.UNKNOWN_IDENTITY, "not a server of this farm")
        here, _ = trio.testing.memory_stream_pair()
        proven = ProvenPeer(ConnectionRole.SERVER, KEYS[node_id], expected)
        return Dialed(here, b"", Identity(), frozenset(), proven)

    async def news(self) -> None:
        """When the story says so."""
        await self.something_new.wait()
        self.something_new = trio.Event()

    @property
    def member_directory(self) -> MemberDirectory:
        """As the real one."""
        return cast("MemberDirectory", self)

    @property
    def applied_state(self) -> AppliedState:
        """As the real one."""
        return cast("AppliedState", self)


def listed(node_id: bytes) -> FarmMember:
    """A member that says that it runs server 7."""
    metadata = NodeMetadata("farm", "member", RoleHint.VOTER, raft_id=7)
    return FarmMember(node_id, MemberStatus.ALIVE, metadata, bytes(32))


def search(notes: AdmissionStore, told: Told, out: bytes = b"") -> OwnRaftId:
    farm = KnownFarm(FOUNDING, notes, told.applied_state)
    alarms = Alarms(EventLog("node", lambda: 0))
    return OwnRaftId(farm, told.member_directory, told, lambda node_id: node_id == out, alarms)


async def test_a_founder_has_its_raft_id_at_once_and_without_a_file(tmp_path: Path) -> None:
    notes = AdmissionStore(tmp_path, FOUNDING, B, founded=True)
    assert await search(notes, Told()).until_known() == 2
    assert not (tmp_path / FILE_NAME).exists()


async def test_a_newcomer_waits_until_it_is_told_and_remembers_it(tmp_path: Path) -> None:
    notes, told, found = AdmissionStore(tmp_path, FOUNDING, C, founded=False), Told(), []

    async def wait() -> None:
        found.append(await search(notes, told).until_known())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert found == []
        told.words = [(A, 3)]
        told.something_new.set()
    assert found == [3]
    assert AdmissionStore(tmp_path, FOUNDING, C, founded=False).own_id == 3


@pytest.mark.parametrize(("node_id", "raft_id"), [(A, 1), (A, 3), (C, 2)])
async def test_no_node_takes_the_raft_id_of_another_nor_a_founder_one_that_it_does_not_remember(
    tmp_path: Path, autojump_clock: MockClock, node_id: bytes, raft_id: int
) -> None:
    del autojump_clock
    notes = AdmissionStore(tmp_path, FOUNDING, node_id, founded=False)
    with trio.move_on_after(60) as patience:
        await search(notes, Told([(B, raft_id)])).until_known()
    assert patience.cancelled_caught
    assert notes.own_id is None


async def test_a_stranger_with_the_farm_key_gives_no_node_a_raft_id(tmp_path: Path, autojump_clock: MockClock) -> None:
    del autojump_clock
    notes, told = AdmissionStore(tmp_path, FOUNDING, C, founded=False), Told([(STRANGER, 9)])
    with trio.move_on_after(60) as patience:
        await search(notes, told).until_known()
    assert patience.cancelled_caught
    assert 2 <= len(told.called) <= 60 / RETRY_S + 1, "it is called, and not all the time"
    assert not (tmp_path / FILE_NAME).exists()


async def test_a_member_that_is_no_founder_is_believed_when_it_proves_that_it_is_a_server(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    del autojump_clock
    notes = AdmissionStore(tmp_path, FOUNDING, C, founded=False)
    told = Told([*((bytes([100 + number]) * 8, 9) for number in range(20)), (LATER, 3)], {LATER: 7})
    with trio.fail_after(60):
        assert await search(notes, told).until_known() == 3
    assert notes.own_id == 3


async def test_an_answer_by_another_identity_than_the_sender_proves_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A liar may announce the address of a real server."""
    del autojump_clock
    notes, told = AdmissionStore(tmp_path, FOUNDING, C, founded=False), Told([(STRANGER, 9)], {LATER: 7})
    told.elsewhere = LATER
    with trio.move_on_after(60) as patience:
        await search(notes, told).until_known()
    assert patience.cancelled_caught
    assert LATER in told.called


async def test_the_word_of_an_identity_that_is_known_to_be_out_does_not_count(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    del autojump_clock
    notes = AdmissionStore(tmp_path, FOUNDING, C, founded=False)
    with trio.move_on_after(60) as patience:
        await search(notes, Told([(A, 9)]), out=A).until_known()
    assert patience.cancelled_caught


async def test_a_wrong_raft_id_is_corrected_by_another_members_word_while_there_is_no_log(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """One evicted founder can name a wrong id: a node without a log cannot know of the eviction."""
    del autojump_clock
    notes, told = AdmissionStore(tmp_path, FOUNDING, C, founded=False), Told([(B, 9)])
    own = search(notes, told)
    assert await own.until_known() == 9
    told.words = [(A, 3), (B, 9)]
    with trio.fail_after(60):
        await own.until_corrected(9, told.applied_state)
    assert AdmissionStore(tmp_path, FOUNDING, C, founded=False).own_id == 3


async def test_once_there_is_a_log_members_words_count_no_more_and_the_log_corrects(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    del autojump_clock
    notes, told = AdmissionStore(tmp_path, FOUNDING, C, founded=False), Told([(A, 9)])
    own = search(notes, told)
    assert await own.until_known() == 9
    told.state, told.words = replace(told.state, applied_index=5), [(B, 8)]
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(3600) as patience:
            await own.until_corrected(9, told.applied_state)
        assert patience.cancelled_caught
        told.state = replace(told.state, admitted={**told.state.admitted, 3: Admitted(C, "c")})
        nursery.start_soon(notes.follow, told.applied_state)
        nursery.start_soon(own.until_corrected, 9, told.applied_state)
        await wait_all_tasks_blocked()
        told.something_new.set()
        await trio.sleep(1)
        told.something_new.set()
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert notes.own_id == 3
    assert AdmissionStore(tmp_path, FOUNDING, C, founded=False).own_id == 3


async def test_what_the_log_says_is_known_after_a_restart(tmp_path: Path) -> None:
    told = Told()
    told.state = FarmState(0, admitted={**told.state.admitted, 3: Admitted(C, "c"), 4: Admitted(D, "d")})
    notes = AdmissionStore(tmp_path, FOUNDING, A, founded=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notes.follow, told.applied_state)
        while notes.node_id_of(4) is None:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    again = AdmissionStore(tmp_path, FOUNDING, A, founded=True)
    assert [again.node_id_of(number) for number in range(6)] == [None, A, B, C, D, None]
    assert again.own_id == 1


async def pass_through(
    notes: AdmissionStore, told: Told, *tables: dict[int, Admitted], own: OwnRaftId | None = None
) -> list[int | None]:
    """The node's own Raft id after each of these tables of the log, and as many more as `own` took for corrected."""
    seen: list[int | None] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notes.follow, told.applied_state)
        if own is not None:
            nursery.start_soon(_corrected, own, notes.own_id or 0, told, seen)
        for number, table in enumerate(tables, start=1):
            await wait_all_tasks_blocked()
            told.state = replace(told.state, applied_index=number, admitted={**of_founders(FOUNDING.founders), **table})
            told.something_new.set()
            await wait_all_tasks_blocked()
            seen.append(notes.own_id)
        nursery.cancel_scope.cancel()
    return seen


async def _corrected(own: OwnRaftId, server_id: int, told: Told, seen: list[int | None]) -> None:
    await own.until_corrected(server_id, told.applied_state, lambda: True)
    seen.append(None)


def admitted(raft_id: int, by: int, *, unseen_since_ms: int | None = None) -> Admitted:
    """The node C under that id, admitted by the story's server `by`."""
    entry = signed(Admission(C, "c", None, raft_id), by, FOUNDING.cluster_id)
    return Admitted(C, "c", entry=entry, unseen_since_ms=unseen_since_ms)


async def test_a_node_that_lapsed_and_was_admitted_again_does_not_fall_back_as_it_replays_the_log(
    tmp_path: Path,
) -> None:
    # Given a node that was admitted as server 5, never came alive, and is told now that it is server 9
    notes, told = AdmissionStore(tmp_path, FOUNDING, C, founded=False), Told()
    await notes.store_announced(9)
    first, second = admitted(5, 1, unseen_since_ms=10), admitted(9, 1, unseen_since_ms=90)
    # When it replays the log: the first admission, its lapse, the second, and that it came alive by it
    seen = await pass_through(
        notes,
        told,
        {5: first},
        {5: Admitted(C, standing=Standing.LAPSED, unseen_since_ms=10)},
        {8: Admitted(D), 9: second},
        {8: Admitted(D), 9: replace(second, unseen_since_ms=None)},
        own=search(notes, told),
    )
    # Then it is server 9 all the time, its server is not started anew, and it shows what admitted server 9
    assert seen == [9, 9, 9, 9]
    again = AdmissionStore(tmp_path, FOUNDING, C, founded=False)
    assert (again.own_id, again.chain) == (9, (second.entry,))
    assert (again.node_id_of(5), again.raft_id_of(C)) == (None, 9)


async def test_a_lapsed_admission_that_was_noted_gives_way_to_the_one_after_it(tmp_path: Path) -> None:
    # Given a node that has seen its first admission, and shows it
    notes, told = AdmissionStore(tmp_path, FOUNDING, C, founded=False), Told()
    await notes.store_announced(5)
    first, second = admitted(5, 1, unseen_since_ms=10), admitted(9, 1)
    assert await pass_through(notes, told, {5: first}) == [5]
    assert notes.chain == (first.entry,)
    # When it is told another id, then it shows nothing of the first
    await notes.store_announced(9)
    assert not notes.chain
    # And when it comes alive under the second, the log's word is kept, whatever it replays after a restart
    assert await pass_through(notes, told, {8: Admitted(D), 9: second}) == [9]
    again = AdmissionStore(tmp_path, FOUNDING, C, founded=False)
    assert await pass_through(again, Told(), {5: first}) == [9]
    assert again.chain == (second.entry,)
    assert again.was_server


async def test_others_forget_a_lapsed_raft_id_and_keep_those_that_the_log_has_not_reached(tmp_path: Path) -> None:
    notes = AdmissionStore(tmp_path, FOUNDING, A, founded=True)
    first = admitted(5, 1, unseen_since_ms=10)
    await pass_through(notes, Told(), {5: first, 9: Admitted(D, "d")})
    assert (notes.node_id_of(5), notes.node_id_of(9)) == (C, D)
    await pass_through(notes, Told(), {5: first})
    assert (notes.node_id_of(5), notes.node_id_of(9)) == (C, D)
    await pass_through(notes, Told(), {9: Admitted(D, "d")})
    assert (notes.node_id_of(5), notes.node_id_of(9), notes.own_id) == (None, D, 1)


async def test_no_word_corrects_the_raft_id_of_a_server_that_has_stored_something(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    del autojump_clock
    notes, told = AdmissionStore(tmp_path, FOUNDING, C, founded=False), Told([(B, 9)])
    own = search(notes, told)
    assert await own.until_known() == 9
    told.words = [(A, 3)]
    with trio.move_on_after(3600) as patience:
        await own.until_corrected(9, told.applied_state, lambda: True)
    assert patience.cancelled_caught
    assert notes.own_id == 9


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cannot be used"),
        (b'{"cluster": 1, "servers": {}}', "cannot be used"),
        (b'{"cluster": "63636363636363636363636363636363", "servers": {"3": "xyz"}}', "cannot be used"),
        (b'{"cluster": "00", "servers": {}}', "written in another farm"),
    ],
)
def test_a_file_that_cannot_be_used_stops_the_node_and_says_what_to_do(
    tmp_path: Path, content: bytes, says: str
) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(UnusableFormationError, match=says):
        AdmissionStore(tmp_path, FOUNDING, C, founded=False)


def test_only_those_outside_of_the_group_whose_server_does_not_run_are_told() -> None:
    admitted = {1: Admitted(A), 2: Admitted(B), 3: Admitted(C, "c"), 4: Admitted(D, "d")}
    no_ids: dict[bytes, int | None] = dict.fromkeys((A, B, C, D, b"stranger"))
    assert not_started(admitted, {1, 2}, no_ids, 4) == ((C, 3), (D, 4))
    assert not_started(admitted, {1, 2}, no_ids, 1) == ((C, 3),)
    assert not_started(admitted, {1, 2, 3}, {**no_ids, D: 4}, 4) == ()
