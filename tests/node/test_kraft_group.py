"""One consumer group: rounds of assignment, the group leader, removed members, and the replies to each member."""

from itertools import count
from random import Random

import pytest

from consensus.protocols.kafka.groups.group import (
    Answer,
    Assigned,
    ConsumerGroup,
    GroupState,
    Joined,
    JoinedMember,
    JoinRequest,
    MemberRef,
    Refused,
    TicketAnswer,
)
from consensus.protocols.kafka.wire.apis import ErrorCode
from tests.effort import over_seeds

SESSION_MS = 10_000
REBALANCE_MS = 60_000
FIRST_DELAY_MS = 1_000


class Story:
    """A group, a clock, and the replies by ticket."""

    def __init__(self) -> None:
        self.group = ConsumerGroup("g", FIRST_DELAY_MS)
        self.now_ms = 1_000_000
        self.answers: dict[int, Answer] = {}
        self._tickets = count()

    def after(self, ms: int) -> None:
        """Advance the clock in steps of the group's own deadlines."""
        end_ms = self.now_ms + ms
        while (due_ms := self.group.deadline_ms) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.take(self.group.expire(self.now_ms))
        self.now_ms = end_ms

    def take(self, answers: list[TicketAnswer]) -> None:
        for each in answers:
            assert each.ticket not in self.answers, "a request has one reply"
            self.answers[each.ticket] = each.answer

    def join(self, member: str = "", new_id: str = "new", **given: object) -> int:
        """Send a join request; return its ticket."""
        fields: dict[str, object] = {
            "instance_id": None,
            "client_id": "client",
            "client_host": "127.0.0.1",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": (("range", b"about " + (member or new_id).encode()),),
        }
        requested = JoinRequest(member_id=member, **(fields | given))  # type: ignore[arg-type]
        ticket = next(self._tickets)
        self.take(self.group.join(ticket, requested, new_id, self.now_ms))
        return ticket

    def sync(self, member: str, assignments: dict[str, bytes] | None = None, generation: int | None = None) -> int:
        """Send a sync request; return its ticket."""
        ticket = next(self._tickets)
        requested = self.ref(member, generation)
        self.take(self.group.sync(ticket, requested, ("consumer", "range"), assignments or {}, self.now_ms))
        return ticket

    def ref(self, member: str, generation: int | None = None) -> MemberRef:
        return MemberRef(member, None, self.group.generation if generation is None else generation)

    def heartbeat(self, member: str) -> ErrorCode:
        return self.group.heartbeat(self.ref(member), self.now_ms)

    def leave(self, member: str) -> ErrorCode:
        error, answers = self.group.leave(member, None, self.now_ms)
        self.take(answers)
        return error

    def joined(self, ticket: int) -> Joined:
        """Return the reply to an accepted join."""
        answer = self.answers[ticket]
        assert isinstance(answer, Joined)
        return answer

    def refused(self, ticket: int) -> ErrorCode:
        answer = self.answers[ticket]
        assert isinstance(answer, Refused)
        return answer.error

    def assignment(self, ticket: int) -> bytes:
        """Return the assignment in the reply to an accepted sync."""
        answer = self.answers[ticket]
        assert isinstance(answer, Assigned)
        return answer.assignment


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def pair() -> Story:
    """Return a stable group of a, the group leader, and b."""
    story = Story()
    tickets = story.join(new_id="a"), story.join(new_id="b")
    story.after(2 * FIRST_DELAY_MS)
    assert [story.joined(ticket).generation for ticket in tickets] == [1, 1]
    story.sync("a", {"a": b"partition 0", "b": b""})
    story.sync("b")
    assert story.group.state is GroupState.STABLE
    return story


def test_first_round_waits_for_members_starting_together(story: Story) -> None:
    first = story.join(new_id="a")
    story.after(FIRST_DELAY_MS - 1)
    assert first not in story.answers
    second = story.join(new_id="b")
    story.after(FIRST_DELAY_MS + 1)
    assert story.joined(first).generation == story.joined(second).generation == 1


def test_first_round_ends_within_rebalance_timeout(story: Story) -> None:
    first = story.join(new_id="0", rebalance_timeout_ms=5_000)
    for number in range(1, 20):
        story.join(new_id=str(number), rebalance_timeout_ms=5_000)
        story.after(FIRST_DELAY_MS // 2)
    assert first in story.answers


def test_group_sends_member_list_to_leader_only(story: Story) -> None:
    tickets = story.join(new_id="a"), story.join(new_id="b")
    story.after(2 * FIRST_DELAY_MS)
    leader, other = (story.joined(ticket) for ticket in tickets)
    assert leader.leader_id == other.leader_id == "a"
    assert leader.members == (JoinedMember("a", None, b"about a"), JoinedMember("b", None, b"about b"))
    assert other.members == ()


def test_assignment_is_sent_after_leader_sync(story: Story) -> None:
    story.join(new_id="a")
    story.join(new_id="b")
    story.after(2 * FIRST_DELAY_MS)
    other = story.sync("b")
    assert other not in story.answers
    leader = story.sync("a", {"b": b"partition 0"})
    assert (story.assignment(other), story.assignment(leader)) == (b"partition 0", b"")


def test_assignment_is_repeated_on_request(pair: Story) -> None:
    assert pair.assignment(pair.sync("a")) == b"partition 0"


def test_client_receives_member_id_before_join(story: Story) -> None:
    ticket = story.join(new_id="a", needs_known_id=True)
    assert story.answers[ticket] == Refused(ErrorCode.MEMBER_ID_REQUIRED, "a")
    assert not story.group.members
    story.join("a", needs_known_id=True)
    assert [*story.group.members] == ["a"]


def test_unused_member_id_expires(story: Story) -> None:
    story.join(new_id="a", needs_known_id=True)
    story.after(SESSION_MS)
    assert story.group.is_empty
    assert story.refused(story.join("a", needs_known_id=True)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_round_waits_for_client_with_new_member_id(pair: Story) -> None:
    pair.join(new_id="c")
    pair.join(new_id="d", needs_known_id=True)
    waiting = pair.join("a")
    pair.join("b")
    assert waiting not in pair.answers
    pair.join("d", needs_known_id=True)
    assert [member.member_id for member in pair.joined(waiting).members] == ["a", "b", "c", "d"]


def test_new_member_starts_new_round(pair: Story) -> None:
    newcomer = pair.join(new_id="c")
    assert pair.heartbeat("a") is ErrorCode.REBALANCE_IN_PROGRESS
    again = pair.join("a"), pair.join("b")
    assert {pair.joined(ticket).generation for ticket in (newcomer, *again)} == {2}
    assert pair.joined(newcomer).leader_id == "a"


def test_member_missing_new_round_is_removed(pair: Story) -> None:
    newcomer, again = pair.join(new_id="c"), pair.join("a")
    began_ms = pair.now_ms
    while newcomer not in pair.answers:
        assert pair.heartbeat("b") is ErrorCode.REBALANCE_IN_PROGRESS
        pair.after(SESSION_MS // 2)
    assert pair.now_ms - began_ms == REBALANCE_MS
    assert pair.joined(newcomer).generation == pair.joined(again).generation == 2
    assert [*pair.group.members] == ["a", "c"]
    assert pair.heartbeat("b") is ErrorCode.UNKNOWN_MEMBER_ID


def test_leaving_member_starts_new_round(pair: Story) -> None:
    assert pair.leave("a") is ErrorCode.NONE
    assert pair.heartbeat("b") is ErrorCode.REBALANCE_IN_PROGRESS
    assert pair.joined(pair.join("b")).leader_id == "b"
    assert pair.assignment(pair.sync("b", {"b": b"partition 0"})) == b"partition 0"


def test_unresponsive_member_is_removed_after_session(pair: Story) -> None:
    for _ in range(4):
        pair.after(SESSION_MS // 3)
        last = pair.heartbeat("b")
    assert last is ErrorCode.REBALANCE_IN_PROGRESS
    assert [*pair.group.members] == ["b"]
    assert pair.joined(pair.join("b")).generation == 2


def test_member_with_waiting_request_keeps_session(pair: Story) -> None:
    waiting = pair.join("a", protocols=(("range", b"changed"),))
    for _ in range(5):
        pair.after(SESSION_MS // 2)
        assert pair.heartbeat("b") is ErrorCode.REBALANCE_IN_PROGRESS
    pair.join("b")
    assert pair.joined(waiting).generation == 2


def test_member_without_sync_is_removed(story: Story) -> None:
    story.join(new_id="a", session_timeout_ms=10 * REBALANCE_MS)
    story.join(new_id="b", session_timeout_ms=10 * REBALANCE_MS)
    story.after(2 * FIRST_DELAY_MS)
    waiting = story.sync("b")
    story.after(REBALANCE_MS)
    assert story.refused(waiting) is ErrorCode.REBALANCE_IN_PROGRESS
    assert [*story.group.members] == ["b"]


def test_new_round_refuses_waiting_sync(story: Story) -> None:
    story.join(new_id="a")
    story.join(new_id="b")
    story.after(2 * FIRST_DELAY_MS)
    waiting = story.sync("b")
    story.join(new_id="c")
    assert story.refused(waiting) is ErrorCode.REBALANCE_IN_PROGRESS


def test_second_join_replaces_first(pair: Story) -> None:
    first, second = pair.join("a", protocols=(("range", b"x"),)), pair.join("a", protocols=(("range", b"y"),))
    assert pair.refused(first) is ErrorCode.REBALANCE_IN_PROGRESS
    pair.join("b")
    assert pair.joined(second).members[0].metadata == b"y"


def test_repeated_join_receives_same_generation(story: Story) -> None:
    story.join(new_id="a")
    story.join(new_id="b")
    story.after(2 * FIRST_DELAY_MS)
    again = story.join("b")
    assert story.joined(again).generation == 1
    assert story.group.state is GroupState.COMPLETING


def test_protocol_is_shared_and_most_preferred(story: Story) -> None:
    story.join(new_id="a", protocols=(("sticky", b""), ("range", b"")))
    story.join(new_id="b", protocols=(("range", b""), ("sticky", b"")))
    story.join(new_id="c", protocols=(("newest", b""), ("range", b""), ("sticky", b"")))
    story.after(3 * FIRST_DELAY_MS)
    assert story.group.protocol_name == "range"


@pytest.mark.parametrize(
    "given", [{"protocols": (("other", b""),)}, {"protocols": ()}, {"protocol_type": "connect"}, {"protocol_type": ""}]
)
def test_member_without_common_protocol_is_refused(pair: Story, given: dict[str, object]) -> None:
    assert pair.refused(pair.join("", "c", **given)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert pair.group.state is GroupState.STABLE


def test_request_of_other_generation_is_refused(pair: Story) -> None:
    assert pair.group.heartbeat(pair.ref("a", 7), pair.now_ms) is ErrorCode.ILLEGAL_GENERATION
    assert pair.refused(pair.sync("a", generation=0)) is ErrorCode.ILLEGAL_GENERATION
    assert pair.group.check_commit(pair.ref("a", 0), pair.now_ms) is ErrorCode.ILLEGAL_GENERATION


def test_request_of_unknown_member_is_refused(pair: Story) -> None:
    assert pair.heartbeat("x") is ErrorCode.UNKNOWN_MEMBER_ID
    assert pair.refused(pair.sync("x")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert pair.leave("x") is ErrorCode.UNKNOWN_MEMBER_ID
    assert pair.group.check_commit(pair.ref("x"), pair.now_ms) is ErrorCode.UNKNOWN_MEMBER_ID
    assert pair.refused(pair.join("x")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_commit_is_allowed_until_join_of_new_round(pair: Story) -> None:
    pair.join(new_id="c")
    assert pair.group.check_commit(pair.ref("a"), pair.now_ms) is ErrorCode.NONE
    pair.join("a")
    pair.join("b")
    assert pair.group.check_commit(pair.ref("a"), pair.now_ms) is ErrorCode.REBALANCE_IN_PROGRESS


def test_commit_without_member_id_needs_empty_group(pair: Story) -> None:
    outsider = MemberRef("", None, -1)
    assert pair.group.check_commit(outsider, pair.now_ms) is ErrorCode.UNKNOWN_MEMBER_ID
    pair.leave("a")
    pair.leave("b")
    assert pair.group.check_commit(outsider, pair.now_ms) is ErrorCode.NONE
    assert (pair.group.state, pair.group.is_empty) == (GroupState.EMPTY, True)


def test_canceled_request_is_not_answered(pair: Story) -> None:
    waiting = pair.join("a", protocols=(("range", b"x"),))
    pair.group.forget(waiting)
    assert pair.group.members["a"].joining is None
    pair.after(SESSION_MS)
    assert waiting not in pair.answers


@pytest.fixture
def static() -> Story:
    """Return a stable group of static members: a (instance 1, the group leader) and b (instance 2)."""
    story = Story()
    story.join(new_id="a", instance_id="1")
    story.join(new_id="b", instance_id="2")
    story.after(2 * FIRST_DELAY_MS)
    story.sync("a", {"a": b"partition 0", "b": b"nothing"})
    story.sync("b")
    return story


@pytest.mark.parametrize("may_skip", [False, True])
def test_restarted_static_member_keeps_assignment(static: Story, *, may_skip: bool) -> None:
    joined = static.joined(static.join(new_id="a2", instance_id="1", may_skip_assignment=may_skip))
    assert (joined.generation, joined.member_id, joined.skips_assignment) == (1, "a2", may_skip)
    assert (joined.leader_id == "a2") == may_skip, "a client without support for skipping must not assign"
    assert static.assignment(static.sync("a2")) == b"partition 0"
    assert static.group.state is GroupState.STABLE


def test_previous_holder_of_static_membership_is_fenced(static: Story) -> None:
    static.join(new_id="a2", instance_id="1")
    former = MemberRef("a", "1", 1)
    assert static.group.heartbeat(former, static.now_ms) is ErrorCode.FENCED_INSTANCE_ID
    assert static.group.check_commit(former, static.now_ms) is ErrorCode.FENCED_INSTANCE_ID
    assert static.refused(static.join("a", instance_id="1")) is ErrorCode.FENCED_INSTANCE_ID


def test_static_member_missing_round_stays_until_session_ends(static: Story) -> None:
    for each in static.group.members.values():
        each.expires_ms += REBALANCE_MS
    newcomer = static.join(new_id="c")
    static.join("a", instance_id="1", session_timeout_ms=2 * REBALANCE_MS)
    static.after(REBALANCE_MS)
    assert static.joined(newcomer).generation == 2
    assert "b" in static.group.members
    static.after(SESSION_MS)
    assert "b" not in static.group.members


@pytest.mark.parametrize("instance_id", [None, "other"])
def test_instance_of_removed_member_can_join(static: Story, *, instance_id: str | None) -> None:
    static.join("b", instance_id=instance_id)
    assert static.leave("b") is ErrorCode.NONE
    waiting = static.join(new_id="b2", instance_id="2")
    static.join("a", instance_id="1")
    assert static.joined(waiting).member_id == "b2"


def test_static_member_is_removed_by_instance_id(static: Story) -> None:
    error, _ = static.group.leave("", "2", static.now_ms)
    assert error is ErrorCode.NONE
    assert [*static.group.members] == ["a"]


@over_seeds(150)
def test_random_group_replies_once_and_ends_when_idle(seed: int) -> None:
    random, story = Random(seed), Story()
    requested: list[int] = []
    generation = 0
    for _ in range(200):
        _act(random, story, requested)
        _check_shape(story.group)
        assert story.group.generation >= generation, f"seed {seed}"
        generation = story.group.generation
    story.after(10 * REBALANCE_MS)
    assert story.group.is_empty, f"seed {seed}"
    assert set(requested) <= story.answers.keys(), (
        f"seed {seed}: {set(requested) - story.answers.keys()} are not answered"
    )


def _act(random: Random, story: Story, requested: list[int]) -> None:
    """Send a random request, usually a valid one, for a member or an outsider."""
    name = random.choice("abcdef")
    is_static = name in "ef"
    known = story.group._instances.get(name, "") if is_static else name
    generation = story.group.generation - random.choice((0, 0, 0, 1))
    match random.randrange(7):
        case 0 | 1:
            new_id = f"{name}{random.randrange(1_000_000)}" if is_static else name
            is_new = random.random() < 0.5 or not known
            metadata = random.choice((b"x", b"y"))
            requested.append(
                story.join(
                    "" if is_new and (is_static or name not in story.group.members) else known,
                    new_id,
                    instance_id=name if is_static else None,
                    needs_known_id=random.random() < 0.5,
                    may_skip_assignment=random.random() < 0.5,
                    protocols=(("range", metadata),),
                )
            )
        case 2 | 3:
            requested.append(story.sync(known, dict.fromkeys(story.group.members, b"share"), generation))
        case 4:
            story.group.heartbeat(story.ref(known, generation), story.now_ms)
        case 5 if random.random() < 0.3:
            story.leave(known)
        case _:
            story.after(random.choice((0, 100, FIRST_DELAY_MS, SESSION_MS // 2)))


def _check_shape(group: ConsumerGroup) -> None:
    waiting = [member for member in group.members.values() if member.joining is not None or member.syncing is not None]
    match group.state:
        case GroupState.EMPTY:
            assert not group.members
        case GroupState.PREPARING:
            assert not any(member.syncing for member in group.members.values())
        case GroupState.COMPLETING:
            assert group.leader_id in group.members
            assert group.members[group.leader_id].syncing is None
        case GroupState.STABLE:
            assert group.leader_id in group.members
            assert not waiting
    assert group.deadline_ms is not None or group.is_empty
