"""A newcomer on a leader's link: packs go where its log is known to end, whatever order its answers come in."""

from consensus.core.messages import AppendEntries, AppendReply, InstallSnapshot, SnapshotReply
from consensus.core.position import Command, Configuration, Entry, LogPosition, Server, ServerId
from consensus.node.garlic_farm_guests import Guest
from consensus.wire.garlic_farm.messages import JoinClusterRequest, JoinClusterResponse

LEADER = ServerId(1)
MEMBERS = Configuration((Server(LEADER, "tcp://a:1"),))


def guest() -> Guest:
    return Guest(None, lambda _: JoinClusterRequest(1, 4, 3, 0, 0, 0))


def joined(next_index: int = 1) -> JoinClusterResponse:
    return JoinClusterResponse(4, 1, 3, next_index, accepted=True)


def append(after: int, entries: int) -> AppendEntries:
    return AppendEntries(3, LEADER, LogPosition(after, 3 if after else 0), (Entry(3, Command(b"x")),) * entries, 0, 7)


def reply(next_index: int, *, success: bool) -> AppendReply:
    return AppendReply(3, success, next_index, 7)


def test_a_pack_that_would_leave_a_gap_is_refused_in_the_newcomers_place() -> None:
    newcomer = guest()
    # before it has joined on this connection, nothing is known of its log
    assert newcomer.gap(append(5, 1)) == reply(1, success=False)
    newcomer.greeted(joined(next_index=3))
    assert newcomer.gap(append(5, 1)) == reply(3, success=False)
    # where its log ends packs follow on each other without waiting
    assert newcomer.gap(append(2, 4)) is None
    newcomer.packed(append(2, 4))
    assert newcomer.gap(append(6, 4)) is None
    newcomer.packed(append(6, 4))
    assert newcomer.gap(append(11, 1)) == reply(11, success=False)
    assert newcomer.packs == 2


def test_a_refusal_from_before_a_pack_was_stored_does_not_send_the_leader_back() -> None:
    newcomer = guest()
    newcomer.greeted(joined())
    heartbeat, pack = append(9, 0), append(0, 5)
    assert newcomer.gap(pack) is None
    newcomer.packed(pack)
    newcomer.replied(pack, reply(6, success=True))
    newcomer.replied(heartbeat, reply(1, success=False))
    assert newcomer.gap(append(5, 1)) is None


def test_a_refusal_that_comes_before_the_packs_own_answer_is_made_good_by_it() -> None:
    newcomer = guest()
    newcomer.greeted(joined())
    pack = append(0, 5)
    assert newcomer.gap(pack) is None
    newcomer.packed(pack)
    newcomer.replied(append(9, 0), reply(1, success=False))
    newcomer.replied(pack, reply(6, success=True))
    assert newcomer.gap(append(5, 1)) is None


def test_after_a_snapshot_packs_follow_on_it_and_after_a_new_connection_on_what_it_says() -> None:
    newcomer = guest()
    newcomer.greeted(joined())
    piece = InstallSnapshot(3, LEADER, LogPosition(100, 2), MEMBERS, 0, b"x", done=True, correlation=7)
    newcomer.replied(piece, SnapshotReply(3, accepted=True, next_offset=1, installed=True, correlation=7))
    assert newcomer.gap(append(100, 2)) is None
    newcomer.connection_lost()
    assert newcomer.gap(append(102, 1)) is not None
    newcomer.greeted(joined(next_index=101))
    assert newcomer.gap(append(102, 1)) == reply(101, success=False)
    assert newcomer.gap(append(100, 3)) is None
