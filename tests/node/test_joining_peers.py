"""A newcomer on a leader's link: what goes out in which words, whatever order its answers come in."""

from dataclasses import replace

from consensus.core.messages import AppendEntries, AppendReply, InstallSnapshot, SnapshotReply
from consensus.core.model import Configuration, Entry, LogId, Server
from consensus.protocols.garlic_farm.node.joining_peers import PACKED_ENTRIES_MAX, JoiningPeer, Part
from consensus.protocols.garlic_farm.wire.messages import JoinClusterRequest, JoinClusterResponse

LEADER = 1
MEMBERS = Configuration((Server(LEADER, "tcp://a:1"),))
RECORD_BYTES = 10


def joining_peer(*, trusting: bool = False) -> JoiningPeer:
    return JoiningPeer(
        None,
        lambda _: JoinClusterRequest(
            source=1,
            destination=4,
            term=3,
        ),
        trusting=trusting,
    )


def joined(next_index: int = 1, *, accepted: bool = True) -> JoinClusterResponse:
    return JoinClusterResponse(source=4, destination=1, term=3, next_index=next_index, accepted=accepted)


def append(after: int, entries: int, commit: int = 10_000) -> AppendEntries:
    found = (Entry.command(3, b"x"),) * entries
    return AppendEntries(
        term=3, leader=LEADER, previous=LogId(after, 3 if after else 0), entries=found, commit=commit, correlation=7
    )


def reply(next_index: int, *, success: bool) -> AppendReply:
    return AppendReply(term=3, success=success, next_index=next_index, correlation=7)


def pack(after: int, entries: int, offset: int = 0, commit: int = 10_000) -> tuple[Part, ...]:
    return (Part(append(after, entries, commit), packed=True, offset=offset),)


def send(newcomer: JoiningPeer, request: AppendEntries) -> tuple[Part, ...]:
    """What goes out for `request`, all of which fits on the connection."""
    parts = newcomer.parts(request)
    assert isinstance(parts, tuple), f"kept back: {parts} comes first"
    for part in parts:
        newcomer.sent(part, RECORD_BYTES * len(part.append.entries) if part.packed else 0)
    return parts


def test_a_pack_that_would_leave_a_gap_is_kept_back() -> None:
    newcomer = joining_peer()
    # before it has joined on this connection, nothing is known of its log
    assert newcomer.parts(append(5, 1)) == 1
    newcomer.on_join_reply(joined(next_index=3))
    assert newcomer.parts(append(5, 1)) == 3
    # where its log ends packs follow on each other without waiting
    assert send(newcomer, append(2, 4)) == pack(2, 4)
    assert send(newcomer, append(6, 4)) == pack(6, 4)
    assert newcomer.parts(append(11, 1)) == 11
    assert newcomer.packs == 2


def test_a_refusal_from_before_a_pack_was_stored_does_not_send_the_leader_back() -> None:
    newcomer = joining_peer()
    newcomer.on_join_reply(joined())
    heartbeat, first = append(9, 0), append(0, 5)
    send(newcomer, first)
    newcomer.replied(first, reply(6, success=True))
    newcomer.replied(heartbeat, reply(1, success=False))
    assert newcomer.parts(append(5, 1)) == pack(5, 1)


def test_a_refusal_that_comes_before_the_packs_own_answer_is_made_good_by_it() -> None:
    newcomer = joining_peer()
    newcomer.on_join_reply(joined())
    first = append(0, 5)
    send(newcomer, first)
    newcomer.replied(append(9, 0), reply(1, success=False))
    newcomer.replied(first, reply(6, success=True))
    assert newcomer.parts(append(5, 1)) == pack(5, 1)


def test_after_a_snapshot_packs_follow_on_it_and_after_a_new_connection_on_what_it_says() -> None:
    newcomer = joining_peer()
    newcomer.on_join_reply(joined())
    newcomer.replied(*installed(100))
    assert newcomer.parts(append(100, 2)) == pack(100, 2)
    newcomer.connection_lost()
    assert newcomer.parts(append(102, 1)) == 1
    newcomer.on_join_reply(joined(next_index=101))
    assert newcomer.parts(append(102, 1)) == 101
    assert newcomer.parts(append(100, 3)) == pack(100, 3)


def installed(index: int) -> tuple[InstallSnapshot, SnapshotReply]:
    chunk = InstallSnapshot(
        term=3,
        leader=LEADER,
        last=LogId(index, 2),
        configuration=MEMBERS,
        offset=0,
        data=b"x",
        done=True,
        correlation=7,
    )
    return chunk, SnapshotReply(term=3, accepted=True, next_offset=1, installed=True, correlation=7)


def test_one_of_another_make_is_told_nothing_before_it_has_accepted() -> None:
    newcomer = joining_peer(trusting=True)
    assert newcomer.parts(append(0, 5)) == 1
    assert newcomer.parts(append(9, 0)) == 1
    assert not newcomer.may_send_snapshot()


def test_one_of_another_make_that_elected_itself_gets_the_log_from_index_1_before_any_heartbeat() -> None:
    newcomer = joining_peer(trusting=True)
    # given one whose log ends at 1, with an entry of its own
    newcomer.on_join_reply(joined(next_index=2))
    # then a heartbeat at that place, which it might take for equal, is kept back
    assert newcomer.parts(append(1, 0)) == 1
    assert newcomer.parts(append(1, 5)) == 1
    assert newcomer.parts(append(0, 0)) == 1
    # and as soon as the first pack is on its way it may be sent
    assert send(newcomer, append(0, 5)) == pack(0, 5)
    assert newcomer.parts(append(5, 0)) == (Part(append(5, 0)),)


def test_the_offsets_of_packs_for_another_make_go_on_and_begin_anew_after_a_snapshot() -> None:
    newcomer = joining_peer(trusting=True)
    newcomer.on_join_reply(joined())
    assert send(newcomer, append(0, 5)) == pack(0, 5)
    assert send(newcomer, append(5, 3)) == pack(5, 3, offset=5 * RECORD_BYTES)
    assert send(newcomer, append(8, 1)) == pack(8, 1, offset=8 * RECORD_BYTES)
    newcomer.replied(*installed(100))
    assert send(newcomer, append(100, 2)) == pack(100, 2)
    assert send(newcomer, append(102, 2)) == pack(102, 2, offset=2 * RECORD_BYTES)


def test_a_pack_for_another_make_holds_committed_entries_only() -> None:
    newcomer = joining_peer(trusting=True)
    newcomer.on_join_reply(joined())
    # given that nothing is committed: nothing can be sent that it would not execute
    assert newcomer.parts(append(0, 5, commit=0)) == 1
    # when a part is, that goes as a pack, and the rest as an append
    whole = append(0, 5, commit=3)
    head, tail = send(newcomer, whole)
    assert head == Part(replace(whole, entries=whole.entries[:3]), packed=True)
    assert tail == Part(replace(whole, previous=LogId(3, 3), entries=whole.entries[3:]))
    # and from then on all goes as appends, by which it finds the place in its data file itself
    assert send(newcomer, append(5, 2)) == (Part(append(5, 2)),)


def test_after_a_number_of_entries_another_make_gets_appends() -> None:
    newcomer = joining_peer(trusting=True)
    newcomer.on_join_reply(joined())
    assert send(newcomer, append(0, PACKED_ENTRIES_MAX)) == pack(0, PACKED_ENTRIES_MAX)
    assert send(newcomer, append(PACKED_ENTRIES_MAX, 5)) == (Part(append(PACKED_ENTRIES_MAX, 5)),)


def test_after_a_new_connection_another_make_compares_or_begins_anew() -> None:
    newcomer = joining_peer(trusting=True)
    newcomer.on_join_reply(joined())
    send(newcomer, append(0, 5))
    # given a connection that broke before the first pack was answered: what its log holds is not known
    newcomer.connection_lost()
    newcomer.on_join_reply(joined(next_index=2, accepted=False))
    assert send(newcomer, append(0, 5)) == pack(0, 5)
    newcomer.replied(append(0, 5), reply(6, success=True))
    # after an answer it is, and it refuses the second invitation with the place to go on from
    newcomer.connection_lost()
    newcomer.on_join_reply(joined(next_index=6, accepted=False))
    assert send(newcomer, append(5, 5)) == (Part(append(5, 5)),)
    # and one that has lost its log meanwhile gets all of it
    newcomer.replied(append(5, 5), reply(11, success=True))
    newcomer.connection_lost()
    newcomer.on_join_reply(joined(next_index=2))
    assert newcomer.parts(append(10, 1)) == 1
    assert send(newcomer, append(0, 5)) == pack(0, 5)
