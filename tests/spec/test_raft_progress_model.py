"""The leader's record of a follower against the follower, over a network that loses, repeats and reorders messages.

The follower is a number: up to that index its log equals the leader's. The leader's record may be lower
than the follower's number, and never exceeds it. When replies arrive again, the record catches up.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from consensus.core.replication.progress import MAX_REMEMBERED_REQUESTS, Progress, ProgressState, SentAppend

WINDOW = 3


class _LeaderAndFollower(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.end = 0
        self.equal = 0
        self.wrong = 0
        self.now = 0
        self.correlation = 0
        self.highest_match = 0
        self.progress = Progress(1)
        self.requests: list[tuple[int, int, int]] = []
        self.replies: list[tuple[int, bool, int]] = []

    @initialize(end=st.integers(0, 8), equal=st.integers(0, 8), wrong=st.integers(0, 4))
    def becomes_leader(self, end: int, equal: int, wrong: int) -> None:
        """Start with a follower that shares `equal` entries with the leader, followed by `wrong` other ones."""
        self.end, self.equal, self.wrong = end, min(equal, end), wrong
        self.progress = Progress(end + 1)

    @rule(count=st.integers(1, 3))
    def appends(self, count: int) -> None:
        self.end += count

    @rule(most=st.integers(1, 3))
    def sends_entries(self, most: int) -> None:
        if self.progress.may_send_entries(WINDOW) and self.progress.next <= self.end:
            self.send(self.progress.next - 1, min(self.end, self.progress.next - 1 + most))

    @rule()
    def sends_heartbeat(self) -> None:
        previous = self.progress.match if self.progress.state is ProgressState.UNREACHABLE else self.progress.next - 1
        self.send(previous, previous)

    @rule(data=st.data(), keep=st.booleans())
    def request_arrives(self, data: st.DataObject, keep: bool) -> None:  # noqa: FBT001 - a drawn value
        if self.requests:
            place = data.draw(st.integers(0, len(self.requests) - 1))
            self.reply(self.requests[place] if keep else self.requests.pop(place))

    @rule(data=st.data(), keep=st.booleans())
    def reply_arrives(self, data: st.DataObject, keep: bool) -> None:  # noqa: FBT001 - a drawn value
        if self.replies:
            place = data.draw(st.integers(0, len(self.replies) - 1))
            self.receive(self.replies[place] if keep else self.replies.pop(place))

    @rule()
    def two_round_trips_overtake_messages(self) -> None:
        waiting = self.requests, self.replies
        self.requests, self.replies = [], []
        self.sends_heartbeat()
        self.deliver()
        self.sends_entries(3)
        self.deliver()
        self.requests, self.replies = waiting

    @rule()
    def messages_are_lost(self) -> None:
        self.requests.clear()
        self.replies.clear()

    @rule()
    def replies_are_overdue(self) -> None:
        self.progress.became_unreachable(self.progress.match + 1)

    @rule()
    def overdue_replies_probe_the_end(self) -> None:
        self.progress.became_unreachable(self.end + 1)

    @invariant()
    def match_never_exceeds_follower(self) -> None:
        assert self.progress.match <= self.equal
        assert self.progress.match < self.progress.next <= self.end + 1

    @invariant()
    def match_only_rises(self) -> None:
        assert self.progress.match >= self.highest_match
        self.highest_match = self.progress.match

    @invariant()
    def requests_are_bounded(self) -> None:
        assert len(self.progress.in_flight) <= MAX_REMEMBERED_REQUESTS
        assert len(self.progress.expired) <= MAX_REMEMBERED_REQUESTS
        assert self.progress.appends_in_flight <= WINDOW

    def teardown(self) -> None:
        """Check that a few rounds on a reliable network complete the follower's log and the leader's record."""
        self.messages_are_lost()
        self.progress.became_unreachable(self.progress.match + 1)
        for _ in range(2 * self.end + 4):
            self.now += 1
            self.sends_heartbeat()
            self.deliver()
            while self.progress.may_send_entries(WINDOW) and self.progress.next <= self.end:
                self.send(self.progress.next - 1, min(self.end, self.progress.next + 1))
                self.deliver()
        assert self.progress.match == self.equal == self.end

    def send(self, previous: int, last: int) -> None:
        self.now += 1
        self.correlation += 1
        self.progress.sent(self.correlation, previous, last, self.now)
        self.requests.append((self.correlation, previous, last))

    def deliver(self) -> None:
        while self.requests:
            self.reply(self.requests.pop(0))
        while self.replies:
            self.receive(self.replies.pop(0))

    def reply(self, request: tuple[int, int, int]) -> None:
        """Do the follower's consistency check: accept if it has `previous`, otherwise refuse with a hint."""
        correlation, previous, last = request
        if previous <= self.equal:
            self.equal, self.wrong = max(self.equal, last), self.wrong if last <= self.equal else 0
            self.replies.append((correlation, True, last))
        else:
            self.replies.append((correlation, False, min(previous, self.equal + self.wrong) + 1))

    def receive(self, reply: tuple[int, bool, int]) -> None:
        correlation, success, index = reply
        request: SentAppend | None = self.progress.pop_request(correlation)
        if request is None:
            return
        if success:
            self.progress.succeeded(request, index, self.now)
        else:
            self.progress.refused(request, index)


@pytest.mark.search
def test_leader_record_never_exceeds_follower_and_catches_up() -> None:
    run_state_machine_as_test(_LeaderAndFollower, settings=settings(stateful_step_count=30))


def test_late_reply_to_expired_append_keeps_match() -> None:
    progress = Progress(1, state=ProgressState.REPLICATING)
    progress.sent(1, 0, 1, 10)
    progress.became_unreachable(1)
    progress.sent(2, 0, 0, 20)
    for correlation, previous, last in ((2, 0, 0), (3, 0, 3)):
        if correlation not in progress.in_flight:
            progress.sent(correlation, previous, last, 30)
        request = progress.pop_request(correlation)
        assert request is not None
        progress.succeeded(request, last, 40)
    late = progress.pop_request(1)
    assert late is not None
    progress.succeeded(late, 1, 50)
    assert (progress.match, progress.next) == (3, 4)
