"""Storage of admissions on a node: its own Raft id before it has a log, and all ids after a restart."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from msgspec.structs import replace
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
from tests.node.slow_disk import hold_first_write

A, B, C, D = (bytes([number]) * 8 for number in (1, 2, 3, 4))
KEYS = {node_id_of(key): key for key in (bytes([number]) * 32 for number in (5, 6))}
LATER, STRANGER = KEYS
FOUNDING = Founding((Founder(A, 0, b"a" * 16), Founder(B, 0, b"b" * 16)))


pytestmark = pytest.mark.usefixtures("threads_in_event_loop")


@dataclass
class FakeFarm:
    """The parts of a member directory, an applied state and a dialer that the tests use."""

    announcements: list[tuple[bytes, int]] = field(default_factory=list)
    """Announcing nodes, each with the Raft id that it announces for the admitted node."""
    servers: dict[bytes, int] = field(default_factory=dict)
    """Members that prove their Raft id when they are dialed."""
    elsewhere: bytes = b""
    """Node at the announced addresses, if it is not the announcing node itself."""
    called: list[bytes] = field(default_factory=list)
    state: FarmState = field(default_factory=lambda: FarmState(0, admitted=of_founders(FOUNDING.founders)))
    something_new: trio.Event = field(default_factory=trio.Event)

    def announced_admissions(self, node_id: bytes, cluster_id: bytes) -> list[tuple[FarmMember, int]]:
        assert (node_id, cluster_id) in {(C, FOUNDING.cluster_id), (A, FOUNDING.cluster_id)}
        return [(listed(teller), raft_id) for teller, raft_id in self.announcements]

    def address_of(self, node_id: bytes) -> PeerAddress:
        return PeerAddress((self.elsewhere or node_id).hex(), 1, None)

    async def dial(self, address: PeerAddress, expected: ServerId | None = None) -> Dialed:
        """Return a connection to a server with proven identity; refuse unknown nodes and wrong ids."""
        node_id = NodeId(bytes.fromhex(address.host))
        self.called.append(node_id)
        await trio.sleep(0.1)
        if self.servers.get(node_id) != expected or expected is None:
            raise GarlicFarmError(Fault.UNKNOWN_IDENTITY, "not a server of this farm")
        here, _ = trio.testing.memory_stream_pair()
        proven = ProvenPeer(ConnectionRole.SERVER, KEYS[node_id], expected)
        return Dialed(here, b"", Identity(), frozenset(), proven)

    async def news(self) -> None:
        """Wait for the test's next change."""
        await self.something_new.wait()
        self.something_new = trio.Event()

    @property
    def member_directory(self) -> MemberDirectory:
        return cast("MemberDirectory", self)

    @property
    def applied_state(self) -> AppliedState:
        return cast("AppliedState", self)


def listed(node_id: bytes) -> FarmMember:
    metadata = NodeMetadata("farm", "member", RoleHint.VOTER, raft_id=7)
    return FarmMember(node_id, MemberStatus.ALIVE, metadata, bytes(32))


def search(notes: AdmissionStore, fake: FakeFarm, out: bytes = b"") -> OwnRaftId:
    farm = KnownFarm(FOUNDING, notes, fake.applied_state)
    alarms = Alarms(EventLog("node", lambda: 0))
    return OwnRaftId(farm, fake.member_directory, fake, lambda node_id: node_id == out, alarms)


async def test_founder_has_raft_id_without_file(tmp_path: Path) -> None:
    notes = AdmissionStore(tmp_path, FOUNDING, B, founded=True)
    assert await search(notes, FakeFarm()).until_known() == 2
    assert not (tmp_path / FILE_NAME).exists()


async def test_new_node_stores_announced_raft_id(tmp_path: Path) -> None:
    notes, fake, found = AdmissionStore(tmp_path, FOUNDING, C, founded=False), FakeFarm(), []

    async def wait() -> None:
        found.append(await search(notes, fake).until_known())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert found == []
        fake.announcements = [(A, 3)]
        fake.something_new.set()
    assert found == [3]
    assert AdmissionStore(tmp_path, FOUNDING, C, founded=False).own_id == 3


class AnnouncingFarm(FakeFarm):
    """Announces the Raft id directly after the first look, and wakes only the tasks that wait then."""

    def announced_admissions(self, node_id: bytes, cluster_id: bytes) -> list[tuple[FarmMember, int]]:
        found = super().announced_admissions(node_id, cluster_id)
        if not found:
            trio.lowlevel.spawn_system_task(self.announce)
        return found

    async def announce(self) -> None:
        self.announcements = [(A, 3)]
        self.something_new.set()
        self.something_new = trio.Event()

    async def news(self) -> None:
        await self.something_new.wait()


async def test_announcement_directly_after_look_is_not_lost(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The order of tasks within a turn is random, so one try might not find a lost announcement."""
    for number in range(20):
        notes = AdmissionStore(tmp_path / f"{number}", FOUNDING, C, founded=False)
        (tmp_path / f"{number}").mkdir()
        with trio.fail_after(60):
            assert await search(notes, AnnouncingFarm()).until_known() == 3


@pytest.mark.parametrize(("node_id", "raft_id"), [(A, 1), (A, 3), (C, 2)])
async def test_raft_id_of_other_node_or_unstored_founder_is_refused(
    tmp_path: Path, autojump_clock: MockClock, node_id: bytes, raft_id: int
) -> None:
    notes = AdmissionStore(tmp_path, FOUNDING, node_id, founded=False)
    with trio.move_on_after(60) as limit:
        await search(notes, FakeFarm([(B, raft_id)])).until_known()
    assert limit.cancelled_caught
    assert notes.own_id is None


async def test_announcement_of_unknown_node_is_ignored(tmp_path: Path, autojump_clock: MockClock) -> None:
    notes, fake = AdmissionStore(tmp_path, FOUNDING, C, founded=False), FakeFarm([(STRANGER, 9)])
    with trio.move_on_after(60) as limit:
        await search(notes, fake).until_known()
    assert limit.cancelled_caught
    assert 2 <= len(fake.called) <= 60 / RETRY_S + 1, "it is dialed, with pauses"
    assert not (tmp_path / FILE_NAME).exists()


async def test_announcement_of_proven_server_is_accepted(tmp_path: Path, autojump_clock: MockClock) -> None:
    notes = AdmissionStore(tmp_path, FOUNDING, C, founded=False)
    fake = FakeFarm([*((bytes([100 + number]) * 8, 9) for number in range(20)), (LATER, 3)], {LATER: 7})
    with trio.fail_after(60):
        assert await search(notes, fake).until_known() == 3
    assert notes.own_id == 3


async def test_announcement_needs_identity_of_its_sender(tmp_path: Path, autojump_clock: MockClock) -> None:
    """An attacker may announce the address of a real server."""
    notes, fake = AdmissionStore(tmp_path, FOUNDING, C, founded=False), FakeFarm([(STRANGER, 9)], {LATER: 7})
    fake.elsewhere = LATER
    with trio.move_on_after(60) as limit:
        await search(notes, fake).until_known()
    assert limit.cancelled_caught
    assert LATER in fake.called


async def test_announcement_of_evicted_node_is_ignored(tmp_path: Path, autojump_clock: MockClock) -> None:
    notes = AdmissionStore(tmp_path, FOUNDING, C, founded=False)
    with trio.move_on_after(60) as limit:
        await search(notes, FakeFarm([(A, 9)]), out=A).until_known()
    assert limit.cancelled_caught


async def test_wrong_raft_id_is_corrected_by_another_announcement(tmp_path: Path, autojump_clock: MockClock) -> None:
    """One evicted founder can announce a wrong id: a node without a log does not have the eviction."""
    notes, fake = AdmissionStore(tmp_path, FOUNDING, C, founded=False), FakeFarm([(B, 9)])
    own = search(notes, fake)
    assert await own.until_known() == 9
    fake.announcements = [(A, 3), (B, 9)]
    with trio.fail_after(60):
        await own.until_corrected(9, fake.applied_state)
    assert AdmissionStore(tmp_path, FOUNDING, C, founded=False).own_id == 3


async def test_raft_id_of_node_with_log_is_corrected_only_by_log(tmp_path: Path, autojump_clock: MockClock) -> None:
    notes, fake = AdmissionStore(tmp_path, FOUNDING, C, founded=False), FakeFarm([(A, 9)])
    own = search(notes, fake)
    assert await own.until_known() == 9
    fake.state, fake.announcements = replace(fake.state, applied_index=5), [(B, 8)]
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(3600) as limit:
            await own.until_corrected(9, fake.applied_state)
        assert limit.cancelled_caught
        fake.state = replace(fake.state, admitted={**fake.state.admitted, 3: Admitted(C, "c")})
        async with trio.open_nursery() as searching:
            searching.cancel_scope.deadline = trio.current_time() + 60
            searching.start_soon(own.until_corrected, 9, fake.applied_state)
            await wait_all_tasks_blocked()
            nursery.start_soon(notes.follow, fake.applied_state)
        assert not searching.cancel_scope.cancelled_caught
        nursery.cancel_scope.cancel()
    assert notes.own_id == 3
    assert AdmissionStore(tmp_path, FOUNDING, C, founded=False).own_id == 3


async def test_admissions_of_log_are_kept_across_restart(tmp_path: Path) -> None:
    fake = FakeFarm()
    fake.state = FarmState(0, admitted={**fake.state.admitted, 3: Admitted(C, "c"), 4: Admitted(D, "d")})
    notes = AdmissionStore(tmp_path, FOUNDING, A, founded=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notes.follow, fake.applied_state)
        while notes.node_id_of(4) is None:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    again = AdmissionStore(tmp_path, FOUNDING, A, founded=True)
    assert [again.node_id_of(number) for number in range(6)] == [None, A, B, C, D, None]
    assert again.own_id == 1


async def test_admission_applied_during_write_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that begins after the write would miss the entry, and the admission would be stored later."""
    fake, notes = FakeFarm(), AdmissionStore(tmp_path, FOUNDING, A, founded=True)
    fake.state = replace(fake.state, admitted={**fake.state.admitted, 3: Admitted(C, "c")})
    real = notes._note

    async def write(*changed: Any) -> None:
        if fake.state.applied_index < 2:
            table = {**of_founders(FOUNDING.founders), 3: Admitted(C, "c"), 4: Admitted(D, "d")}
            fake.state = replace(fake.state, applied_index=2, admitted=table)
            fake.something_new.set()
            fake.something_new = trio.Event()  # The event is set only for a task that waits already.
        await real(*changed)

    monkeypatch.setattr(notes, "_note", write)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notes.follow, fake.applied_state)
        with trio.move_on_after(5):
            while notes.node_id_of(4) != D:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert notes.node_id_of(4) == D


async def test_announced_id_during_write_keeps_admissions_of_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, notes = FakeFarm(), AdmissionStore(tmp_path, FOUNDING, C, founded=False)
    fake.state = replace(fake.state, admitted={**fake.state.admitted, 3: Admitted(C, "c"), 4: Admitted(D, "d")})
    disk_is_free = hold_first_write(monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notes.store_announced, 7)
        await wait_all_tasks_blocked()
        nursery.start_soon(notes.follow, fake.applied_state)
        await wait_all_tasks_blocked()
        disk_is_free.set()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    for each in (notes, AdmissionStore(tmp_path, FOUNDING, C, founded=False)):
        assert (each.own_id, each.node_id_of(4)) == (3, D)


async def pass_through(
    notes: AdmissionStore, fake: FakeFarm, *tables: dict[int, Admitted], own: OwnRaftId | None = None
) -> list[int | None]:
    """Apply these tables of admissions in order.

    Return the node's own Raft id after each; None marks a correction of `own`.
    """
    seen: list[int | None] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notes.follow, fake.applied_state)
        if own is not None:
            nursery.start_soon(_corrected, own, notes.own_id or 0, fake, seen)
        for number, table in enumerate(tables, start=1):
            await wait_all_tasks_blocked()
            fake.state = replace(fake.state, applied_index=number, admitted={**of_founders(FOUNDING.founders), **table})
            fake.something_new.set()
            await wait_all_tasks_blocked()
            seen.append(notes.own_id)
        nursery.cancel_scope.cancel()
    return seen


async def _corrected(own: OwnRaftId, server_id: int, fake: FakeFarm, seen: list[int | None]) -> None:
    await own.until_corrected(server_id, fake.applied_state, lambda: True)
    seen.append(None)


def admitted(raft_id: int, by: int, *, unseen_since_ms: int | None = None) -> Admitted:
    """Return the node C with this id, admitted by server `by`."""
    entry = signed(Admission(C, "c", None, raft_id), by, FOUNDING.cluster_id)
    return Admitted(C, "c", entry=entry, unseen_since_ms=unseen_since_ms)


async def test_raft_id_after_lapse_and_readmission_survives_replay(tmp_path: Path) -> None:
    # Given a node, admitted as server 5, that never became active and is now announced as server 9
    notes, fake = AdmissionStore(tmp_path, FOUNDING, C, founded=False), FakeFarm()
    await notes.store_announced(9)
    first, second = admitted(5, 1, unseen_since_ms=10), admitted(9, 1, unseen_since_ms=90)
    # When it replays the log: first admission, lapse, second admission, first activity
    seen = await pass_through(
        notes,
        fake,
        {5: first},
        {5: Admitted(C, standing=Standing.LAPSED, unseen_since_ms=10)},
        {8: Admitted(D), 9: second},
        {8: Admitted(D), 9: replace(second, unseen_since_ms=None)},
        own=search(notes, fake),
    )
    # Then it stays server 9, its server is not restarted, and it presents the second admission
    assert seen == [9, 9, 9, 9]
    again = AdmissionStore(tmp_path, FOUNDING, C, founded=False)
    assert (again.own_id, again.chain) == (9, (second.entry,))
    assert (again.node_id_of(5), again.raft_id_of(C)) == (None, 9)


async def test_lapsed_admission_is_replaced_by_its_successor(tmp_path: Path) -> None:
    # Given a node that has stored and presents its first admission
    notes, fake = AdmissionStore(tmp_path, FOUNDING, C, founded=False), FakeFarm()
    await notes.store_announced(5)
    first, second = admitted(5, 1, unseen_since_ms=10), admitted(9, 1)
    assert await pass_through(notes, fake, {5: first}) == [5]
    assert notes.chain == (first.entry,)
    # When another id is announced, then the node drops the first admission
    await notes.store_announced(9)
    assert not notes.chain
    # When it becomes active under the second admission, then it keeps this one, even if a restart replays the first
    assert await pass_through(notes, fake, {8: Admitted(D), 9: second}) == [9]
    again = AdmissionStore(tmp_path, FOUNDING, C, founded=False)
    assert await pass_through(again, FakeFarm(), {5: first}) == [9]
    assert again.chain == (second.entry,)
    assert again.was_server


async def test_lapsed_raft_id_is_dropped_while_unreached_ids_stay(tmp_path: Path) -> None:
    notes = AdmissionStore(tmp_path, FOUNDING, A, founded=True)
    first = admitted(5, 1, unseen_since_ms=10)
    await pass_through(notes, FakeFarm(), {5: first, 9: Admitted(D, "d")})
    assert (notes.node_id_of(5), notes.node_id_of(9)) == (C, D)
    await pass_through(notes, FakeFarm(), {5: first})
    assert (notes.node_id_of(5), notes.node_id_of(9)) == (C, D)
    await pass_through(notes, FakeFarm(), {9: Admitted(D, "d")})
    assert (notes.node_id_of(5), notes.node_id_of(9), notes.own_id) == (None, D, 1)


async def test_announcement_does_not_correct_server_with_stored_data(tmp_path: Path, autojump_clock: MockClock) -> None:
    notes, fake = AdmissionStore(tmp_path, FOUNDING, C, founded=False), FakeFarm([(B, 9)])
    own = search(notes, fake)
    assert await own.until_known() == 9
    fake.announcements = [(A, 3)]
    with trio.move_on_after(3600) as limit:
        await own.until_corrected(9, fake.applied_state, lambda: True)
    assert limit.cancelled_caught
    assert notes.own_id == 9


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be used"),
        (b'{"cluster": 1, "servers": {}}', "cannot be used"),
        (b'{"cluster": "63636363636363636363636363636363", "servers": {"3": "xyz"}}', "cannot be used"),
        (b'{"cluster": "00", "servers": {}}', "written in another farm"),
    ],
)
def test_unusable_file_stops_node_with_remedy(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(UnusableFormationError, match=message):
        AdmissionStore(tmp_path, FOUNDING, C, founded=False)


def test_admitted_nodes_without_running_server_are_listed() -> None:
    admitted = {1: Admitted(A), 2: Admitted(B), 3: Admitted(C, "c"), 4: Admitted(D, "d")}
    no_ids: dict[bytes, int | None] = dict.fromkeys((A, B, C, D, b"stranger"))
    assert not_started(admitted, {1, 2}, no_ids, 4) == ((C, 3), (D, 4))
    assert not_started(admitted, {1, 2}, no_ids, 1) == ((C, 3),)
    assert not_started(admitted, {1, 2, 3}, {**no_ids, D: 4}, 4) == ()
