"""Membership by introductions: known and live members, and precedence of two descriptions of one member."""

from msgspec.structs import replace

from bridge.core.membership.connection_membership import ConnectionMembership
from gossip.core.effects import AdoptGeneration, Alarm, AlarmKind, MembershipChanged
from gossip.core.member import Address, Incarnation, NodeId, NodeInfo, Status

SILENT_MS = 3_000


def description(number: int, generation: int = 1, claim: int = 0, text: bytes = b"") -> NodeInfo:
    """Return the description that node `number` sends of itself."""
    node_id = NodeId(number.to_bytes(8, "big"))
    return NodeInfo(node_id, Address("127.0.0.1", 7669), Incarnation(generation, claim), 30, text)


A, B, C = description(1), description(2), description(3)


def connection_membership(most: int = 64) -> ConnectionMembership:
    return ConnectionMembership(A, SILENT_MS, most=most)


def statuses(known: ConnectionMembership) -> dict[NodeId, Status]:
    return {each.node_id: each.status for each in known.members()}


def test_introduced_member_dead_after_timeout() -> None:
    known = connection_membership()
    assert [*known.receive(B, 0, first_hand=True)] == [MembershipChanged(B, Status.ALIVE, None)]
    assert known.update_status(SILENT_MS - 1, ()) == []
    assert known.update_status(SILENT_MS, ()) == [MembershipChanged(B, Status.DEAD, Status.ALIVE)]
    # A repeated introduction, even without changes, makes it alive again.
    assert [*known.receive(B, 9_000, first_hand=True)] == [MembershipChanged(B, Status.ALIVE, Status.DEAD)]
    assert known.update_status(9_000 + SILENT_MS - 1, ()) == []


def test_conflicting_descriptions_are_equivocation() -> None:
    known = connection_membership()
    known.receive(B, 0, first_hand=True)
    found = [*known.receive(description(2, text=b"other"), 1, first_hand=False)]
    assert [type(each) for each in found] == [MembershipChanged, Alarm]
    assert [each.equivocates for each in known.members()] == [True]
    assert [*known.receive(description(2, text=b"third"), 2, first_hand=True)] == []


def test_equivocation_ends_at_later_generation() -> None:
    known = connection_membership()
    known.receive(B, 0, first_hand=True)
    known.receive(description(2, text=b"other"), 1, first_hand=False)
    found = [*known.receive(description(2, generation=2), 2, first_hand=False)]
    assert [each.equivocates for each in found if isinstance(each, MembershipChanged)] == [False]
    assert [(each.kind, each.over) for each in found if isinstance(each, Alarm)] == [(AlarmKind.EQUIVOCATION, True)]
    assert [each.equivocates for each in known.members()] == [False]


def test_equivocation_ends_when_member_is_dropped() -> None:
    known = connection_membership(most=1)
    known.receive(B, 0, first_hand=True)
    known.receive(description(2, text=b"other"), 1, first_hand=False)
    known.update_status(SILENT_MS + 1, ())
    found = [*known.receive(C, SILENT_MS + 2, first_hand=True)]
    assert [each.over for each in found if isinstance(each, Alarm)] == [True]


def test_open_connection_keeps_member_alive() -> None:
    known = connection_membership()
    known.receive(B, 0, first_hand=True)
    for now in range(1_000, 20_000, 1_000):
        assert known.update_status(now, {B.node_id}) == []
    assert known.update_status(19_000 + SILENT_MS, ()) == [MembershipChanged(B, Status.DEAD, Status.ALIVE)]
    assert known.update_status(30_000, {B.node_id}) == [MembershipChanged(B, Status.ALIVE, Status.DEAD)]


def test_forwarded_description_does_not_keep_alive() -> None:
    known = connection_membership()
    assert [*known.receive(C, 0, first_hand=False)] == [MembershipChanged(C, Status.ALIVE, None)]
    for now in range(0, SILENT_MS, 100):
        assert not known.receive(C, now, first_hand=False)
    assert known.update_status(SILENT_MS, ()) == [MembershipChanged(C, Status.DEAD, Status.ALIVE)]
    assert not known.receive(C, SILENT_MS, first_hand=False)
    # A forwarded description proves that the member was alive only if it is later than the known description.
    later = description(3, claim=1, text=b"later")
    assert [*known.receive(later, SILENT_MS, first_hand=False)] == [MembershipChanged(later, Status.ALIVE, Status.DEAD)]


def test_later_description_wins_in_any_order() -> None:
    known = connection_membership()
    later = description(2, claim=5, text=b"later")
    known.receive(later, 0, first_hand=False)
    assert not known.receive(description(2, claim=4, text=b"older"), 0, first_hand=True)
    assert known.members()[0].info.metadata == b"later"


def test_departure_final_until_own_later_description() -> None:
    known = connection_membership()
    known.receive(B, 0, first_hand=True)
    departing = description(2, claim=1)
    assert [*known.receive(departing, 1, first_hand=True, leaving=True)] == [
        MembershipChanged(departing, Status.LEFT, Status.ALIVE)
    ]
    assert not known.receive(departing, 2, first_hand=True)
    assert not known.receive(description(2, claim=2), 2, first_hand=False)
    assert known.update_status(60_000, ()) == []
    assert known.alive() == ()
    # As in gossip, a higher generation wins, or a higher incarnation number in the same generation.
    for back in (description(2, claim=2), description(2, generation=2)):
        assert [*known.receive(back, 3, first_hand=True)] == [MembershipChanged(back, Status.ALIVE, Status.LEFT)]
        departing = replace(back, incarnation=back.incarnation.raised())
        assert known.receive(departing, 4, first_hand=True, leaving=True)


def test_departure_of_unknown_node_is_ignored() -> None:
    known = connection_membership()
    assert not known.receive(B, 0, first_hand=True, leaving=True)
    assert known.members() == ()


def test_other_process_with_own_identity_raises_alarm() -> None:
    known = connection_membership()
    known.announce(b"more")
    assert not known.receive(replace(known.own, credential=b"signed"), 0, first_hand=True)
    assert not known.receive(A, 0, first_hand=True)
    for other in (description(1, claim=1, text=b"other words"), description(1, generation=2)):
        found = [*known.receive(other, 0, first_hand=True)]
        assert [type(each) for each in found] == [Alarm]
        assert isinstance(found[0], Alarm)
        assert found[0].kind is AlarmKind.IDENTITY_CONFLICT


def test_node_with_old_generation_adopts_later_one() -> None:
    known = connection_membership()
    adopted, alarm = known.receive(description(1, generation=7), 0, first_hand=False)
    assert adopted == AdoptGeneration(8)
    assert isinstance(alarm, Alarm)
    assert alarm.kind is AlarmKind.ROLLED_BACK
    known.adopt(8)
    assert known.own.incarnation == Incarnation(8, 0)
    assert not known.receive(description(1, generation=7, claim=9), 0, first_hand=False)


def test_full_table_keeps_live_members() -> None:
    known = connection_membership(most=2)
    known.receive(B, 0, first_hand=True)
    known.receive(C, 0, first_hand=True)
    assert not known.receive(description(4), 0, first_hand=True)
    assert known.left_out == 1
    # A dead member, and later a departed one, is replaced.
    known.update_status(SILENT_MS, {C.node_id})
    assert [*known.receive(description(4), SILENT_MS, first_hand=True)]
    assert statuses(known) == {C.node_id: Status.ALIVE, description(4).node_id: Status.ALIVE}
    known.receive(description(4, claim=1), SILENT_MS, first_hand=True, leaving=True)
    assert [*known.receive(description(5), SILENT_MS, first_hand=True)]
    assert statuses(known) == {C.node_id: Status.ALIVE, description(5).node_id: Status.ALIVE}
