"""Identities that a node accepts in a handshake: by the founding, the log, its stored admissions and their proofs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
import trio
from msgspec.structs import replace
from trio.testing import wait_all_tasks_blocked

from bridge.core.formation.founding import Founder, Founding
from bridge.core.log.records import Admission
from bridge.core.membership.admission import Admitted, Standing, of_founders
from bridge.core.state.farm_state import FarmState
from bridge.node.membership import admissions
from bridge.node.membership.admissions import AdmissionStore
from bridge.node.membership.farm_peers import IDS_AHEAD_MAX, UNNAMED_OF_SIGNER_MAX, FarmPeers, KnownFarm
from bridge.node.raft.applied_state import AppliedState
from consensus.protocols.garlic_farm.wire.errors import Fault
from consensus.protocols.garlic_farm.wire.peers import Claim, ProvenPeer, Refusal
from consensus.protocols.garlic_farm.wire.proof import ConnectionRole
from gossip.node.state_files import NodeIdentity
from tests.authored import key_of, node_id, signed

NUMBERS = sorted((1, 2, 3), key=node_id)
"""Key numbers of the founders by NodeId: the founder with the lowest NodeId has the Raft id 1."""
FOUNDING = Founding(tuple(Founder(node_id(number), 0, bytes(16)) for number in NUMBERS))
SERVER, CLIENT = ConnectionRole.SERVER, ConnectionRole.CLIENT


def public_key(number: int) -> bytes:
    return key_of(number).public_key().public_bytes_raw()


@dataclass
class Log:
    """The parts of an applied state that the tests use."""

    state: FarmState = field(default_factory=lambda: FarmState(0, admitted=of_founders(FOUNDING.founders)))
    changed: trio.Event = field(default_factory=trio.Event)

    async def news(self) -> None:
        """Wait for the test's next change."""
        await self.changed.wait()
        self.changed = trio.Event()

    def change(self, **changes: object) -> None:
        """Change the state, and wake the waiting tasks."""
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]  # the view's own fields
        self.changed.set()

    def admits(self, server_id: int, number: int, standing: Standing = Standing.MEMBER) -> None:
        """Give a Raft id to an identity."""
        each = Admitted(node_id(number), f"node-{number}", public_key(number), standing)
        self.change(admitted={**self.state.admitted, server_id: each})


@dataclass
class NodeView:
    """The view of founder 1."""

    directory: Path
    log: Log = field(default_factory=Log)
    group: set[int] = field(default_factory=lambda: {1, 2, 3})

    def __post_init__(self) -> None:
        """Make the node's admissions, peers and farm."""
        self.notes = AdmissionStore(self.directory, FOUNDING, node_id(NUMBERS[0]), founded=True)
        self.peers = FarmPeers(NodeIdentity.of(key_of(NUMBERS[0])), None)
        self.farm = KnownFarm(FOUNDING, self.notes, cast("AppliedState", self.log), lambda: self.group)
        self.peers.farm = self.farm

    def fault(
        self, server_id: int | None, number: int, role: ConnectionRole = SERVER, shown: tuple[bytes, ...] = ()
    ) -> Fault | None:
        """Return the fault of the identity `number` with this claimed Raft id, or None."""
        refusal = self.peers.judge(Claim(role, public_key(number), server_id, shown))
        assert refusal is None or node_id(number).hex() in refusal.text or "was removed" in refusal.text
        return None if refusal is None else refusal.fault


@pytest.fixture
def view(tmp_path: Path) -> NodeView:
    return NodeView(tmp_path)


def test_founders_are_accepted_by_founding_without_log(view: NodeView) -> None:
    view.log.change(admitted={})
    assert [view.fault(raft_id, number) for raft_id, number in enumerate(NUMBERS, start=1)] == [None] * 3


def test_raft_id_belongs_to_one_identity(view: NodeView) -> None:
    assert view.fault(2, NUMBERS[2]) is Fault.UNKNOWN_IDENTITY
    assert view.fault(2, 77) is Fault.UNKNOWN_IDENTITY


def test_unassigned_raft_id_is_refused(view: NodeView) -> None:
    assert view.fault(77, 77) is Fault.UNKNOWN_IDENTITY
    assert view.fault(77, NUMBERS[1]) is Fault.UNKNOWN_IDENTITY, "also for a founder"


def test_lapsed_admission_is_refused_even_if_shown_or_stored(view: NodeView) -> None:
    admission = signed(Admission(node_id(77), "late", public_key(77), 4), NUMBERS[0], FOUNDING.cluster_id)
    assert view.fault(4, 77, SERVER, (admission,)) is None, "before the log has the lapse"
    view.log.admits(4, 77, Standing.LAPSED)
    assert view.fault(4, 77, SERVER, (admission,)) is Fault.UNKNOWN_IDENTITY
    view.log.change(admitted={number: each for number, each in view.log.state.admitted.items() if number != 4})
    view.log.admits(5, 78)
    assert view.fault(4, 77, SERVER, (admission,)) is Fault.UNKNOWN_IDENTITY
    assert view.fault(None, 77, CLIENT) is None, "it may request admission again"


def test_client_without_raft_id_is_accepted(view: NodeView) -> None:
    assert view.fault(None, 77, CLIENT) is None


def test_evicted_or_retired_identity_is_refused_in_every_role(view: NodeView) -> None:
    for standing in (Standing.EVICTED, Standing.RETIRED):
        view.log.admits(2, NUMBERS[1], standing)
        assert {view.fault(claim, NUMBERS[1], role) for claim in (2, None, 77) for role in (SERVER, CLIENT)} == {
            Fault.EXPELLED
        }
        assert view.peers.is_out(node_id(NUMBERS[1]))


def test_removed_node_stays_server_until_it_leaves_group(view: NodeView) -> None:
    view.log.change(removed=(3,))
    assert view.fault(3, NUMBERS[2]) is None
    view.group.discard(3)
    assert view.fault(3, NUMBERS[2]) is Fault.EXPELLED
    assert view.fault(3, NUMBERS[2], CLIENT) is None
    view.log.change(removed=())
    assert view.fault(3, NUMBERS[2]) is None, "readmitted"


def test_shown_admission_chain_proves_server_missing_in_log(view: NodeView) -> None:
    cluster_id = FOUNDING.cluster_id
    fourth = signed(Admission(node_id(44), "node-4", public_key(44), 4), NUMBERS[1], cluster_id)
    fifth = signed(Admission(node_id(55), "node-5", public_key(55), 5), 44, cluster_id)
    assert view.fault(4, 44) is Fault.UNKNOWN_IDENTITY
    assert view.fault(4, 44, shown=(fourth,)) is None
    assert view.fault(5, 55, shown=(fifth, fourth)) is None
    assert view.fault(5, 55, shown=(fifth,)) is Fault.UNKNOWN_IDENTITY
    assert view.fault(5, 44, shown=(fourth,)) is Fault.UNKNOWN_IDENTITY
    assert view.fault(4, 77, shown=(fourth,)) is Fault.UNKNOWN_IDENTITY, "shown by a different node"
    # When the log has the fourth, the chain of the fifth needs to reach only the fourth
    view.log.admits(4, 44)
    assert view.fault(5, 55, shown=(fifth,)) is None
    # The log has priority over a shown admission
    view.log.admits(4, 44, Standing.EVICTED)
    assert view.fault(4, 44, shown=(fourth,)) is Fault.EXPELLED
    assert view.fault(5, 55, shown=(fifth, fourth)) is Fault.UNKNOWN_IDENTITY


def test_self_signed_admission_is_refused(view: NodeView) -> None:
    own = signed(Admission(node_id(77), "node-7", public_key(77), 4), 77, FOUNDING.cluster_id)
    assert view.fault(4, 77, shown=(own,)) is Fault.UNKNOWN_IDENTITY


def admission(number: int, server_id: int, by: int) -> bytes:
    """Return an admission of the identity `number`, signed by the identity `by`."""
    record = Admission(node_id(number), f"node-{number}", public_key(number), server_id)
    return signed(record, by, FOUNDING.cluster_id)


def claim(server_id: int, number: int, *shown: bytes) -> Claim:
    return Claim(SERVER, public_key(number), server_id, shown)


@pytest.mark.parametrize("server_id", [4, 5, 3 + IDS_AHEAD_MAX])
def test_admission_counts_for_raft_id_up_to_limit(view: NodeView, server_id: int) -> None:
    assert view.fault(server_id, 77, shown=(admission(77, server_id, by=NUMBERS[1]),)) is None


@pytest.mark.parametrize("server_id", [4 + IDS_AHEAD_MAX, 4242, 2**30])
def test_admission_beyond_raft_id_limit_is_refused(view: NodeView, server_id: int) -> None:
    refusal = view.peers.judge(claim(server_id, 77, admission(77, server_id, by=NUMBERS[1])))
    assert refusal is not None
    assert refusal.fault is Fault.UNKNOWN_IDENTITY
    assert (
        f"the highest Raft id known here is 3, and an admission counts up to {IDS_AHEAD_MAX} above it" in refusal.text
    )


async def test_new_node_measures_raft_ids_from_its_own(tmp_path: Path) -> None:
    notes = AdmissionStore(tmp_path, FOUNDING, node_id(44), founded=False)
    peers = FarmPeers(NodeIdentity.of(key_of(44)), KnownFarm(FOUNDING, notes, cast("AppliedState", Log())))
    leader = claim(999, 77, admission(77, 999, by=NUMBERS[1]))
    assert peers.judge(leader) is not None
    await notes.store_announced(1000)
    assert peers.judge(leader) is None


def test_group_in_stored_log_raises_highest_known_raft_id(view: NodeView) -> None:
    view.group.add(1000)
    assert view.fault(1001, 77, shown=(admission(77, 1001, by=NUMBERS[1]),)) is None


def test_signer_admits_one_identity_per_raft_id(view: NodeView) -> None:
    assert view.fault(4, 77, shown=(admission(77, 4, by=NUMBERS[1]),)) is None
    assert view.fault(4, 78, shown=(admission(78, 4, by=NUMBERS[1]),)) is Fault.UNKNOWN_IDENTITY
    # A hostile member cannot take the id from a new node that another member has admitted
    assert view.fault(4, 79, shown=(admission(79, 4, by=NUMBERS[2]),)) is None
    # The first identity may connect again
    assert view.fault(4, 77, shown=(admission(77, 4, by=NUMBERS[1]),)) is None


def test_admission_signed_by_removed_server_is_refused(view: NodeView) -> None:
    shown = (admission(77, 4, by=NUMBERS[2]),)
    view.log.change(removed=(3,))
    assert view.fault(4, 77, shown=shown) is None, "it is still in the group and may lead it"
    view.group.discard(3)
    assert view.fault(4, 77, shown=shown) is Fault.UNKNOWN_IDENTITY
    view.log.change(removed=())
    assert view.fault(4, 77, shown=shown) is None, "it was readmitted"


def test_admission_signed_by_inactive_identity_is_refused(view: NodeView) -> None:
    for standing in (Standing.EVICTED, Standing.RETIRED, Standing.LAPSED):
        view.log.admits(4, 44, standing)
        assert view.fault(5, 77, shown=(admission(77, 5, by=44),)) is Fault.UNKNOWN_IDENTITY


def test_signer_vouches_for_server_until_log_has_it(view: NodeView) -> None:
    shown = claim(4, 77, admission(77, 4, by=NUMBERS[1]))
    assert view.peers.judge(shown) is None
    assert view.peers.voucher_of(shown) == node_id(NUMBERS[1])
    assert view.peers.voucher_of(claim(2, NUMBERS[1])) is None
    view.log.admits(4, 77)
    assert view.peers.judge(shown) is None
    assert view.peers.voucher_of(shown) is None


def test_last_known_signer_vouches_for_whole_chain(view: NodeView) -> None:
    chain = (admission(77, 6, by=66), admission(66, 5, by=44), admission(44, 4, by=NUMBERS[1]))
    assert view.peers.judge(claim(6, 77, *chain)) is None
    assert view.peers.voucher_of(claim(6, 77, *chain)) == node_id(NUMBERS[1])


def test_memory_for_identities_of_one_signer_is_bounded(view: NodeView) -> None:
    for number in range(UNNAMED_OF_SIGNER_MAX + 8):
        view.peers.judge(claim(4 + number, 77, admission(77, 4 + number, by=NUMBERS[1])))
    kept = [view.peers.voucher_of(claim(4 + number, 77)) for number in range(UNNAMED_OF_SIGNER_MAX + 8)]
    assert kept == [None] * 8 + [node_id(NUMBERS[1])] * UNNAMED_OF_SIGNER_MAX


def test_node_without_farm_defers_all_servers(tmp_path: Path) -> None:
    peers = FarmPeers(NodeIdentity.of(key_of(1)), None)
    refusal = peers.judge(Claim(SERVER, public_key(2), 1))
    assert refusal is not None
    assert refusal.fault is Fault.BUSY
    assert peers.judge(Claim(CLIENT, public_key(2), None)) is None
    assert peers.admissions() == ()
    assert list(tmp_path.iterdir()) == []


async def follow_admission_and_eviction(directory: Path) -> None:
    """Run a node until its log has admitted server 4 and then evicted server 2."""
    node = NodeView(directory)
    node.log.admits(4, 44)
    node.log.admits(2, NUMBERS[1], Standing.EVICTED)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.notes.follow, node.farm.applied_state)
        while not node.notes.out:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def test_stored_admissions_apply_after_restart_before_replay(tmp_path: Path) -> None:
    # Given a node whose log admitted 4 and then evicted 2
    await follow_admission_and_eviction(tmp_path)
    # When it restarts with an empty state
    after = NodeView(tmp_path)
    # Then the stored admissions apply
    assert after.fault(4, 44) is None
    assert after.fault(4, 77) is Fault.UNKNOWN_IDENTITY
    assert after.fault(2, NUMBERS[1]) is Fault.EXPELLED


async def test_admission_entry_of_new_node_is_stored(tmp_path: Path) -> None:
    entry = signed(Admission(node_id(44), "node-4", public_key(44), 4), NUMBERS[0], FOUNDING.cluster_id)
    log = Log()
    log.change(admitted={**log.state.admitted, 4: Admitted(node_id(44), "node-4", public_key(44), entry=entry)})
    notes = AdmissionStore(tmp_path, FOUNDING, node_id(44), founded=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notes.follow, cast("AppliedState", log))
        while not notes.chain:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    own = AdmissionStore(tmp_path, FOUNDING, node_id(44), founded=False)
    again = FarmPeers(NodeIdentity.of(key_of(44)), KnownFarm(FOUNDING, own, cast("AppliedState", Log())))
    assert again.admissions() == (entry,)


async def test_connections_of_expelled_or_removed_node_are_closed(view: NodeView) -> None:
    connected = [
        ProvenPeer(SERVER, public_key(NUMBERS[1]), 2),
        ProvenPeer(SERVER, public_key(NUMBERS[2]), 3),
        ProvenPeer(CLIENT, public_key(NUMBERS[2]), 3),
        ProvenPeer(CLIENT, public_key(77), None),
    ]
    ended: list[list[bool]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(view.peers.follow, view.farm, lambda refused: ended.append([*map(refused, connected)]))
        await wait_all_tasks_blocked()
        view.log.admits(2, NUMBERS[1], Standing.EVICTED)
        await wait_all_tasks_blocked()
        view.group.discard(3)
        view.log.change(removed=(3,))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert ended == [[False] * 4, [True, False, False, False], [True, True, False, False]]


FOURTH = signed(Admission(node_id(44), "node-4", public_key(44), 4), NUMBERS[1], FOUNDING.cluster_id)
FIFTH = signed(Admission(node_id(55), "node-5", public_key(55), 5), 44, FOUNDING.cluster_id)


@dataclass
class Connections:
    """Connections of peers that a node has accepted, as the Raft port keeps them."""

    open: list[ProvenPeer]

    def end(self, refused: Callable[[ProvenPeer], bool]) -> None:
        self.open = [each for each in self.open if not refused(each)]


def accepted_peer(view: NodeView, server_id: int, number: int, role: ConnectionRole, *shown: bytes) -> ProvenPeer:
    proven = ProvenPeer(role, public_key(number), server_id, shown)
    assert view.peers.judge(proven) is None
    return proven


async def test_accepted_peer_is_checked_again_after_log_change(view: NodeView, nursery: trio.Nursery) -> None:
    async def open_ids() -> list[int | None]:
        await wait_all_tasks_blocked()
        return [each.server_id for each in connections.open]

    # Given connections of server 4, admitted by a founder, and 5, admitted by 4. This node's log has neither.
    connections = Connections(
        [
            accepted_peer(view, 4, 44, SERVER, FOURTH),
            accepted_peer(view, 5, 55, SERVER, FIFTH, FOURTH),
            accepted_peer(view, 5, 55, CLIENT, FIFTH, FOURTH),
            accepted_peer(view, 3, NUMBERS[2], SERVER),
        ]
    )
    nursery.start_soon(view.peers.follow, view.farm, connections.end)
    assert await open_ids() == [4, 5, 5, 3]
    # When the log assigns the id 4 to the same identity, and the id 5 to another identity.
    view.log.admits(4, 44)
    assert await open_ids() == [4, 5, 5, 3]
    view.log.admits(5, 66)
    # Then the connections with the claimed id 5 are closed.
    assert await open_ids() == [4, 3]
    # When an admission lapses, its connection is closed.
    view.log.admits(5, 66, Standing.LAPSED)
    connections.open.append(ProvenPeer(SERVER, public_key(66), 5))
    view.log.admits(4, 44, Standing.LAPSED)
    assert await open_ids() == [3]


async def test_eviction_of_signer_closes_connection_of_its_server(view: NodeView, nursery: trio.Nursery) -> None:
    connections = Connections(
        [accepted_peer(view, 5, 55, SERVER, FIFTH, FOURTH), accepted_peer(view, 4, 44, SERVER, FOURTH)]
    )
    nursery.start_soon(view.peers.follow, view.farm, connections.end)
    await wait_all_tasks_blocked()
    assert len(connections.open) == 2
    view.log.admits(2, NUMBERS[1], Standing.EVICTED)
    await wait_all_tasks_blocked()
    assert connections.open == []


async def test_unrelated_log_change_does_not_repeat_check(
    view: NodeView, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    judged: list[Claim] = []
    judge = view.peers.judge

    def counted(claim: Claim) -> Refusal | None:
        judged.append(claim)
        return judge(claim)

    connections = Connections([accepted_peer(view, 5, 55, SERVER, FIFTH, FOURTH)])
    monkeypatch.setattr(view.peers, "judge", counted)
    nursery.start_soon(view.peers.follow, view.farm, connections.end)
    for number in range(10):
        await wait_all_tasks_blocked()
        view.log.change(applied_index=number)
    await wait_all_tasks_blocked()
    assert len(judged) == 1


async def test_node_admitted_before_eviction_of_leader_stays_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write that stores the eviction also stores the earlier admissions, so the node may stop after any write."""
    written: list[bytes] = []

    def replace_file(path: Path, content: bytes) -> None:
        written.append(content)
        path.write_bytes(content)

    monkeypatch.setattr(admissions, "replace_file", replace_file)
    # Given a log that admits 4 through 2 and then evicts 2; this node receives both together.
    await follow_admission_and_eviction(tmp_path)
    assert written
    # When the node stops after any of its writes, and restarts with an empty log.
    for content in written:
        (tmp_path / admissions.FILE_NAME).write_bytes(content)
        again = NodeView(tmp_path)
        # Then the evicted node is refused, and 4 is accepted with its admission.
        assert again.fault(2, NUMBERS[1]) is (Fault.EXPELLED if again.notes.out else None)
        assert again.fault(4, 44, shown=(FOURTH,)) is None


def test_refusal_names_peer_with_owner_of_raft_id(view: NodeView) -> None:
    view.log.admits(2, NUMBERS[1])
    refusal = view.peers.judge(Claim(SERVER, public_key(77), 2))
    assert refusal is not None
    assert refusal.text == (
        f"the identity {node_id(77).hex()} claims to be server 2 (node-{NUMBERS[1]}), which has the identity"
        f" {node_id(NUMBERS[1]).hex()}"
    )
