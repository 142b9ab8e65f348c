"""Which peers a node of a farm believes in a handshake: by the founding, the log, its notes, and their own proofs."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest
import trio
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
"""Of the founders' keys: the founder with the lowest NodeId has the Raft id 1."""
FOUNDING = Founding(tuple(Founder(node_id(number), 0, bytes(16)) for number in NUMBERS))
SERVER, CLIENT = ConnectionRole.SERVER, ConnectionRole.CLIENT


def public_key(number: int) -> bytes:
    """Of the identity of that number."""
    return key_of(number).public_key().public_bytes_raw()


@dataclass
class Log:
    """As much of a applied state as is asked for."""

    state: FarmState = field(default_factory=lambda: FarmState(0, admitted=of_founders(FOUNDING.founders)))
    something_new: trio.Event = field(default_factory=trio.Event)

    async def news(self) -> None:
        """When the story says so."""
        await self.something_new.wait()
        self.something_new = trio.Event()

    def says(self, **changes: object) -> None:
        """Another state from now on."""
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]  # the story's own fields
        self.something_new.set()

    def admits(self, server_id: int, number: int, standing: Standing = Standing.MEMBER) -> None:
        """An identity has this Raft id."""
        each = Admitted(node_id(number), f"node-{number}", public_key(number), standing)
        self.says(admitted={**self.state.admitted, server_id: each})


@dataclass
class Story:
    """Founder 1's view."""

    directory: Path
    log: Log = field(default_factory=Log)
    group: set[int] = field(default_factory=lambda: {1, 2, 3})

    def __post_init__(self) -> None:
        """It knows its farm."""
        self.notes = AdmissionStore(self.directory, FOUNDING, node_id(NUMBERS[0]), founded=True)
        self.peers = FarmPeers(NodeIdentity.of(key_of(NUMBERS[0])), None)
        self.farm = KnownFarm(FOUNDING, self.notes, cast("AppliedState", self.log), lambda: self.group)
        self.peers.farm = self.farm

    def fault(
        self, server_id: int | None, number: int, role: ConnectionRole = SERVER, shown: tuple[bytes, ...] = ()
    ) -> Fault | None:
        """What is against the identity `number` that claims a Raft id."""
        refusal = self.peers.judge(Claim(server_id, role, public_key(number), shown))
        assert refusal is None or node_id(number).hex() in refusal.text or "was removed" in refusal.text
        return None if refusal is None else refusal.fault


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_founders_are_believed_by_the_founding_alone(story: Story) -> None:
    story.log.says(admitted={})
    assert [story.fault(raft_id, number) for raft_id, number in enumerate(NUMBERS, start=1)] == [None] * 3


def test_an_id_belongs_to_one_identity(story: Story) -> None:
    assert story.fault(2, NUMBERS[2]) is Fault.UNKNOWN_IDENTITY
    assert story.fault(2, 77) is Fault.UNKNOWN_IDENTITY


def test_an_id_that_was_never_given_out_belongs_to_no_node(story: Story) -> None:
    assert story.fault(77, 77) is Fault.UNKNOWN_IDENTITY
    assert story.fault(77, NUMBERS[1]) is Fault.UNKNOWN_IDENTITY, "nor to a founder"


def test_an_admission_that_has_lapsed_is_refused_whatever_is_shown_or_was_noted(story: Story) -> None:
    admission = signed(Admission(node_id(77), "late", public_key(77), 4), NUMBERS[0], FOUNDING.cluster_id)
    assert story.fault(4, 77, SERVER, (admission,)) is None, "before the log tells of it"
    story.log.admits(4, 77, Standing.LAPSED)
    assert story.fault(4, 77, SERVER, (admission,)) is Fault.UNKNOWN_IDENTITY
    story.log.says(admitted={number: each for number, each in story.log.state.admitted.items() if number != 4})
    story.log.admits(5, 78)
    assert story.fault(4, 77, SERVER, (admission,)) is Fault.UNKNOWN_IDENTITY
    assert story.fault(None, 77, CLIENT) is None, "it may ask again"


def test_a_peer_that_claims_no_id_needs_no_proof_of_one(story: Story) -> None:
    assert story.fault(None, 77, CLIENT) is None


def test_an_evicted_or_replaced_identity_is_refused_in_every_role_and_without_an_id_as_well(story: Story) -> None:
    for standing in (Standing.EVICTED, Standing.RETIRED):
        story.log.admits(2, NUMBERS[1], standing)
        assert {story.fault(claim, NUMBERS[1], role) for claim in (2, None, 77) for role in (SERVER, CLIENT)} == {
            Fault.EXPELLED
        }
        assert story.peers.is_out(node_id(NUMBERS[1]))


def test_a_removed_node_is_a_server_as_long_as_the_group_needs_it_and_a_client_after(story: Story) -> None:
    story.log.says(removed=(3,))
    assert story.fault(3, NUMBERS[2]) is None
    story.group.discard(3)
    assert story.fault(3, NUMBERS[2]) is Fault.EXPELLED
    assert story.fault(3, NUMBERS[2], CLIENT) is None
    story.log.says(removed=())
    assert story.fault(3, NUMBERS[2]) is None, "let back"


def test_a_server_of_which_this_log_does_not_tell_yet_is_believed_by_the_admissions_that_it_shows(
    story: Story,
) -> None:
    cluster_id = FOUNDING.cluster_id
    fourth = signed(Admission(node_id(44), "node-4", public_key(44), 4), NUMBERS[1], cluster_id)
    fifth = signed(Admission(node_id(55), "node-5", public_key(55), 5), 44, cluster_id)
    assert story.fault(4, 44) is Fault.UNKNOWN_IDENTITY
    assert story.fault(4, 44, shown=(fourth,)) is None
    assert story.fault(5, 55, shown=(fifth, fourth)) is None
    assert story.fault(5, 55, shown=(fifth,)) is Fault.UNKNOWN_IDENTITY
    assert story.fault(5, 44, shown=(fourth,)) is Fault.UNKNOWN_IDENTITY
    assert story.fault(4, 77, shown=(fourth,)) is Fault.UNKNOWN_IDENTITY, "shown by another node"
    # When the log tells of the fourth, the fifth needs to lead back to it only
    story.log.admits(4, 44)
    assert story.fault(5, 55, shown=(fifth,)) is None
    # And what the log says goes before what is shown
    story.log.admits(4, 44, Standing.EVICTED)
    assert story.fault(4, 44, shown=(fourth,)) is Fault.EXPELLED
    assert story.fault(5, 55, shown=(fifth, fourth)) is Fault.UNKNOWN_IDENTITY


def test_a_node_that_signs_an_admission_for_itself_gains_nothing(story: Story) -> None:
    own = signed(Admission(node_id(77), "node-7", public_key(77), 4), 77, FOUNDING.cluster_id)
    assert story.fault(4, 77, shown=(own,)) is Fault.UNKNOWN_IDENTITY


def admission(number: int, server_id: int, by: int) -> bytes:
    """The identity `by` signs an admission of the identity `number`."""
    record = Admission(node_id(number), f"node-{number}", public_key(number), server_id)
    return signed(record, by, FOUNDING.cluster_id)


def claim(server_id: int, number: int, *shown: bytes) -> Claim:
    return Claim(server_id, SERVER, public_key(number), shown)


@pytest.mark.parametrize("server_id", [4, 5, 3 + IDS_AHEAD_MAX])
def test_an_admission_counts_for_an_id_just_above_the_known_ones(story: Story, server_id: int) -> None:
    assert story.fault(server_id, 77, shown=(admission(77, server_id, by=NUMBERS[1]),)) is None


@pytest.mark.parametrize("server_id", [4 + IDS_AHEAD_MAX, 4242, 2**30])
def test_an_admission_does_not_count_for_an_id_far_above_the_known_ones(story: Story, server_id: int) -> None:
    refusal = story.peers.judge(claim(server_id, 77, admission(77, server_id, by=NUMBERS[1])))
    assert refusal is not None
    assert refusal.fault is Fault.UNKNOWN_IDENTITY
    assert (
        f"the highest Raft id known here is 3, and an admission counts up to {IDS_AHEAD_MAX} above it" in refusal.text
    )


async def test_a_newcomer_measures_ids_by_its_own(tmp_path: Path) -> None:
    notes = AdmissionStore(tmp_path, FOUNDING, node_id(44), founded=False)
    peers = FarmPeers(NodeIdentity.of(key_of(44)), KnownFarm(FOUNDING, notes, cast("AppliedState", Log())))
    leader = claim(999, 77, admission(77, 999, by=NUMBERS[1]))
    assert peers.judge(leader) is not None
    await notes.store_announced(1000)
    assert peers.judge(leader) is None


def test_the_group_of_the_stored_log_raises_the_highest_known_id(story: Story) -> None:
    story.group.add(1000)
    assert story.fault(1001, 77, shown=(admission(77, 1001, by=NUMBERS[1]),)) is None


def test_a_signer_admits_one_identity_for_each_id(story: Story) -> None:
    assert story.fault(4, 77, shown=(admission(77, 4, by=NUMBERS[1]),)) is None
    assert story.fault(4, 78, shown=(admission(78, 4, by=NUMBERS[1]),)) is Fault.UNKNOWN_IDENTITY
    # A hostile member cannot take the id from a newcomer that another one has admitted
    assert story.fault(4, 79, shown=(admission(79, 4, by=NUMBERS[2]),)) is None
    # And the first one may come again
    assert story.fault(4, 77, shown=(admission(77, 4, by=NUMBERS[1]),)) is None


def test_what_a_removed_server_signs_shows_nothing(story: Story) -> None:
    shown = (admission(77, 4, by=NUMBERS[2]),)
    story.log.says(removed=(3,))
    assert story.fault(4, 77, shown=shown) is None, "it is still in the group, and may lead it"
    story.group.discard(3)
    assert story.fault(4, 77, shown=shown) is Fault.UNKNOWN_IDENTITY
    story.log.says(removed=())
    assert story.fault(4, 77, shown=shown) is None, "it was allowed back"


def test_what_a_server_without_a_living_admission_signs_shows_nothing(story: Story) -> None:
    for standing in (Standing.EVICTED, Standing.RETIRED, Standing.LAPSED):
        story.log.admits(4, 44, standing)
        assert story.fault(5, 77, shown=(admission(77, 5, by=44),)) is Fault.UNKNOWN_IDENTITY


def test_a_signer_answers_for_a_server_until_the_log_names_it(story: Story) -> None:
    shown = claim(4, 77, admission(77, 4, by=NUMBERS[1]))
    assert story.peers.judge(shown) is None
    assert story.peers.voucher_of(shown) == node_id(NUMBERS[1])
    assert story.peers.voucher_of(claim(2, NUMBERS[1])) is None
    story.log.admits(4, 77)
    assert story.peers.judge(shown) is None
    assert story.peers.voucher_of(shown) is None


def test_the_last_known_signer_of_a_chain_answers_for_all_of_it(story: Story) -> None:
    chain = (admission(77, 6, by=66), admission(66, 5, by=44), admission(44, 4, by=NUMBERS[1]))
    assert story.peers.judge(claim(6, 77, *chain)) is None
    assert story.peers.voucher_of(claim(6, 77, *chain)) == node_id(NUMBERS[1])


def test_the_identities_that_a_signer_invents_use_bounded_memory(story: Story) -> None:
    for number in range(UNNAMED_OF_SIGNER_MAX + 8):
        story.peers.judge(claim(4 + number, 77, admission(77, 4 + number, by=NUMBERS[1])))
    kept = [story.peers.voucher_of(claim(4 + number, 77)) for number in range(UNNAMED_OF_SIGNER_MAX + 8)]
    assert kept == [None] * 8 + [node_id(NUMBERS[1])] * UNNAMED_OF_SIGNER_MAX


def test_before_it_knows_its_farm_a_node_believes_no_peer_and_puts_all_off(tmp_path: Path) -> None:
    peers = FarmPeers(NodeIdentity.of(key_of(1)), None)
    refusal = peers.judge(Claim(1, SERVER, public_key(2)))
    assert refusal is not None
    assert refusal.fault is Fault.BUSY
    assert peers.judge(Claim(None, CLIENT, public_key(2))) is None
    assert peers.admissions() == ()
    assert list(tmp_path.iterdir()) == []


async def test_what_the_log_said_counts_after_a_restart_before_the_log_is_replayed(tmp_path: Path) -> None:
    # Given a node whose log admitted 4 and 5, the latter by 4, and then evicted 2
    before = Story(tmp_path)
    before.log.admits(4, 44)
    before.log.admits(2, NUMBERS[1], Standing.EVICTED)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(before.notes.follow, before.farm.applied_state)
        while not before.notes.out:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    # When it starts again with an empty state
    after = Story(tmp_path)
    # Then it knows them
    assert after.fault(4, 44) is None
    assert after.fault(4, 77) is Fault.UNKNOWN_IDENTITY
    assert after.fault(2, NUMBERS[1]) is Fault.EXPELLED


async def test_what_shows_a_newcomer_to_others_is_kept_on_disk(tmp_path: Path) -> None:
    entry = signed(Admission(node_id(44), "node-4", public_key(44), 4), NUMBERS[0], FOUNDING.cluster_id)
    log = Log()
    log.says(admitted={**log.state.admitted, 4: Admitted(node_id(44), "node-4", public_key(44), entry=entry)})
    notes = AdmissionStore(tmp_path, FOUNDING, node_id(44), founded=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notes.follow, cast("AppliedState", log))
        while not notes.chain:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    own = AdmissionStore(tmp_path, FOUNDING, node_id(44), founded=False)
    again = FarmPeers(NodeIdentity.of(key_of(44)), KnownFarm(FOUNDING, own, cast("AppliedState", Log())))
    assert again.admissions() == (entry,)


async def test_the_connections_of_an_expelled_or_removed_node_end(story: Story) -> None:
    connected = [
        ProvenPeer(SERVER, public_key(NUMBERS[1]), 2),
        ProvenPeer(SERVER, public_key(NUMBERS[2]), 3),
        ProvenPeer(CLIENT, public_key(NUMBERS[2]), 3),
        ProvenPeer(CLIENT, public_key(77), None),
    ]
    ended: list[list[bool]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(story.peers.follow, story.farm, lambda refused: ended.append([*map(refused, connected)]))
        await wait_all_tasks_blocked()
        story.log.admits(2, NUMBERS[1], Standing.EVICTED)
        await wait_all_tasks_blocked()
        story.group.discard(3)
        story.log.says(removed=(3,))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert ended == [[False] * 4, [True, False, False, False], [True, True, False, False]]


FOURTH = signed(Admission(node_id(44), "node-4", public_key(44), 4), NUMBERS[1], FOUNDING.cluster_id)
FIFTH = signed(Admission(node_id(55), "node-5", public_key(55), 5), 44, FOUNDING.cluster_id)


@dataclass
class Connections:
    """Of those whom a node has let in by the chain that they showed, as the Raft port keeps them."""

    open: list[ProvenPeer]

    def end(self, refused: Callable[[ProvenPeer], bool]) -> None:
        """Of those who may not speak any more."""
        self.open = [each for each in self.open if not refused(each)]


def let_in(story: Story, server_id: int, number: int, role: ConnectionRole, *shown: bytes) -> ProvenPeer:
    proven = ProvenPeer(role, public_key(number), server_id, shown)
    assert story.peers.judge(proven.claim) is None
    return proven


async def test_an_accepted_peer_is_judged_again_when_the_log_knows_more(story: Story) -> None:
    async def left() -> list[int | None]:
        await wait_all_tasks_blocked()
        return [each.server_id for each in connections.open]

    # Given: 4, admitted by 2, and 5, admitted by 4, of whom this node's log does not tell.
    connections = Connections(
        [
            let_in(story, 4, 44, SERVER, FOURTH),
            let_in(story, 5, 55, SERVER, FIFTH, FOURTH),
            let_in(story, 5, 55, CLIENT, FIFTH, FOURTH),
            let_in(story, 3, NUMBERS[2], SERVER),
        ]
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(story.peers.follow, story.farm, connections.end)
        assert await left() == [4, 5, 5, 3]
        # When: the log gives 4 to the one that it was, and 5 to another.
        story.log.admits(4, 44)
        assert await left() == [4, 5, 5, 3]
        story.log.admits(5, 66)
        # Then: the server that had the id 5 is gone.
        assert await left() == [4, 3]
        # And when an admission lapses.
        story.log.admits(5, 66, Standing.LAPSED)
        connections.open.append(ProvenPeer(SERVER, public_key(66), 5))
        story.log.admits(4, 44, Standing.LAPSED)
        assert await left() == [3]
        nursery.cancel_scope.cancel()


async def test_the_eviction_of_its_signer_ends_the_connection_of_a_server_that_no_log_knows(
    story: Story,
) -> None:
    connections = Connections([let_in(story, 5, 55, SERVER, FIFTH, FOURTH), let_in(story, 4, 44, SERVER, FOURTH)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(story.peers.follow, story.farm, connections.end)
        await wait_all_tasks_blocked()
        assert len(connections.open) == 2
        story.log.admits(2, NUMBERS[1], Standing.EVICTED)
        await wait_all_tasks_blocked()
        assert connections.open == []
        nursery.cancel_scope.cancel()


async def test_news_that_change_no_verdict_cost_no_signature(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[Claim] = []
    judge = story.peers.judge

    def counted(claim: Claim) -> Refusal | None:
        judged.append(claim)
        return judge(claim)

    connections = Connections([let_in(story, 5, 55, SERVER, FIFTH, FOURTH)])
    monkeypatch.setattr(story.peers, "judge", counted)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(story.peers.follow, story.farm, connections.end)
        for number in range(10):
            await wait_all_tasks_blocked()
            story.log.says(applied_index=number)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert len(judged) == 1


async def test_a_node_that_a_leader_admitted_before_its_eviction_is_believed_during_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What says that the leader is out says as well whom it had admitted, whenever the node stopped in between."""
    written: list[bytes] = []

    def replace_file(path: Path, content: bytes) -> None:
        written.append(content)
        path.write_bytes(content)

    monkeypatch.setattr(admissions, "replace_file", replace_file)
    # Given: a log in which 2 admits 4 and is evicted then, of which this node hears in one go.
    before = Story(tmp_path)
    before.log.admits(4, 44)
    before.log.admits(2, NUMBERS[1], Standing.EVICTED)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(before.notes.follow, before.farm.applied_state)
        while not before.notes.out:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert written
    # When: it stops behind any of its writes, and starts again with an empty log.
    for content in written:
        (tmp_path / admissions.FILE_NAME).write_bytes(content)
        again = Story(tmp_path)
        # Then: who is out is refused, and 4 is believed whatever it shows.
        assert again.fault(2, NUMBERS[1]) is (Fault.EXPELLED if again.notes.out else None)
        assert again.fault(4, 44, shown=(FOURTH,)) is None


def test_the_sentence_names_the_peer_and_the_owner_of_the_id(story: Story) -> None:
    story.log.admits(2, NUMBERS[1])
    refusal = story.peers.judge(Claim(2, SERVER, public_key(77)))
    assert refusal is not None
    assert refusal.text == (
        f"the identity {node_id(77).hex()} claims to be server 2 (node-{NUMBERS[1]}), which has the identity"
        f" {node_id(NUMBERS[1]).hex()}"
    )
