"""Changes of the configuration by a leader: from the request to the commitment of the last step (Raft section 6).

    request ──▶ newcomers catch up ──▶ C_old,new ──committed──▶ C_new ──committed──▶ reply
                     │                     (or C_new directly, if the voters differ by one server)
                     └── no progress: refused, nothing was appended

A direct switch to C_new is safe only if every majority of C_old shares a server with every majority of C_new. This is
true if one server is added or removed (`JointConsensus`). With more changed servers, each configuration could elect its
own leader in one term. Joint consensus needs both majorities during the change. Learners and endpoints may change with
any step.

docs/explanation/changing-servers.md describes `CatchUp` (thesis section 4.2.1) and the end of a change.

*One at a time* (`Reconfiguration`). A request is refused during another change, while the latest configuration is
uncommitted, and before the leader has committed an entry of its term. Without the last rule, a leader may not know an
unfinished single-server change of an older leader. Then two majorities without a common server could decide
differently.
"""

from msgspec import Struct, field

from consensus.core.effects import ChangeOutcome, ChangeRefusal, ConfigurationResolved
from consensus.core.entry_data import configuration_entry
from consensus.core.events import ChangeConfiguration
from consensus.core.features import JointConsensus
from consensus.core.model import (
    MAX_MEMBERS,
    Configuration,
    Entry,
    Index,
    LogId,
    Milliseconds,
    Server,
    ServerId,
    names_each_once,
    possible_ids,
)
from consensus.core.options import Options
from consensus.core.replica import Replica
from consensus.core.replication.progress import FIRST_HALVINGS, Progress, ProgressTracker
from consensus.core.status import ChangeProgress, NewcomerProgress


def target_refusal(current: Configuration, target: Configuration) -> ChangeRefusal | None:
    """Return the reason why `target` is invalid in any protocol; None if it is valid."""
    if not target.voters:
        return ChangeRefusal.NO_VOTERS
    if target.is_joint or not names_each_once(target):
        return ChangeRefusal.SERVER_TWICE
    if not possible_ids(current, target):
        return ChangeRefusal.IMPOSSIBLE_ID
    if len(current.member_ids | target.member_ids) > MAX_MEMBERS:
        return ChangeRefusal.TOO_MANY_SERVERS
    return None


def newcomers(current: Configuration, target: Configuration) -> tuple[Server, ...]:
    """Return the target's new voters. They catch up first: otherwise the group might be unable to commit."""
    return tuple(server for server in target.voters if server.server_id not in current.voter_ids)


def first_step(
    current: Configuration, target: Configuration, *, joint: JointConsensus, learners: bool
) -> Configuration | ChangeRefusal:
    """Return the first configuration to append on the way from `current`, which is not joint, to `target`."""
    if target.learners and not learners:
        return ChangeRefusal.NO_LEARNERS
    if joint is not JointConsensus.ALWAYS and len(current.voter_ids ^ target.voter_ids) <= 1:
        return target
    if joint is JointConsensus.NEVER:
        return ChangeRefusal.MORE_THAN_ONE_SERVER
    return Configuration(target.voters, current.voters, target.learners)


def leave_joint(configuration: Configuration) -> Configuration:
    """Return C_new of C_old,new."""
    return Configuration(configuration.voters, (), configuration.learners)


class CatchUp(Struct):
    """Progress of one new server to the end of the leader's log. `goal` is the end of the present round.

    A learner that becomes a voter may have lagged for a long time, so its time limit begins at `requested_ms`.
    """

    goal: Index
    requested_ms: Milliseconds
    began_ms: Milliseconds
    round_number: int = 1
    caught_up: bool = False

    def check(self, progress: Progress, last_index: Index, now: Milliseconds, options: Options) -> ChangeRefusal | None:
        """Record the progress of the server; return the reason for a refusal, if any."""
        while not self.caught_up and progress.match >= self.goal:
            if now - self.began_ms <= options.catch_up_round_ms:
                self.caught_up = True
            elif self.round_number == options.catch_up_rounds:
                return ChangeRefusal.CATCH_UP_TOO_SLOW
            else:
                self.round_number += 1
                self.goal = last_index
                self.began_ms = now
        if not self.caught_up and now >= self.deadline(progress, options):
            return ChangeRefusal.CATCH_UP_STALLED
        return None

    def deadline(self, progress: Progress, options: Options) -> Milliseconds:
        """Return the time when a server without further progress is refused."""
        return max(self.requested_ms, progress.advanced_ms) + options.catch_up_stall_ms


class Change(Struct):
    """A change that a caller waits for. `catching_up` is empty once the first step is appended."""

    change_id: int
    target: Configuration
    newcomers: tuple[Server, ...]
    head: bytes = b""
    """Bytes of the protocol, stored with the first configuration of this change."""
    catching_up: dict[ServerId, CatchUp] = field(default_factory=dict)
    appended: bool = False


class Reconfiguration:
    """The leader's part in changes of the configuration, for one term."""

    def __init__(self, replica: Replica, tracker: ProgressTracker) -> None:
        self._replica = replica
        self._tracker = tracker
        self._followers = tracker.followers
        self._known: tuple[Index, bool, int] | None = None
        self._removal_grace_ms: Milliseconds | None = None
        self.change: Change | None = None
        self._under_way = self._is_uncommitted()
        self.is_settled = False
        """True if no change is under way, so a step can skip this part."""
        self.adjust_followers()

    @property
    def deadline(self) -> Milliseconds | None:
        """Return the time when a newcomer without progress is refused, or removed servers are dropped."""
        due = [] if self._removal_grace_ms is None else [self._removal_grace_ms]
        if self.change is not None:
            due += [
                catch_up.deadline(self._followers[newcomer], self._replica.options)
                for newcomer, catch_up in self.change.catching_up.items()
                if not catch_up.caught_up
            ]
        return min(due, default=None)

    @property
    def newcomers(self) -> tuple[Server, ...]:
        """Return the servers that get the log although no configuration names them as voters yet."""
        return self.change.newcomers if self.change is not None and not self.change.appended else ()

    @property
    def is_dismissed(self) -> bool:
        """Return True if a committed configuration does not have this leader as a voter."""
        configuration = self._replica.log.configuration
        return (
            not configuration.is_joint
            and self._replica.server_id not in self._replica.voters
            and not self._is_uncommitted()
        )

    def request(self, request: ChangeConfiguration) -> None:
        """Begin the change to the requested target, or refuse it."""
        current = self._replica.log.configuration
        target = request.target
        refusal = target_refusal(current, target) or self._refusal_at_present()
        if refusal is not None:
            self._answer(request.change_id, refusal)
            return
        change = Change(request.change_id, target, newcomers(current, target), request.head)
        if target == current:
            change.appended = True
        elif isinstance(step := self._first_step(target), ChangeRefusal):
            self._answer(request.change_id, step)
            return
        self.change = change
        self.is_settled = False
        now = self._replica.now
        self._tracker.wake_by(now + self._replica.options.catch_up_stall_ms)
        for newcomer in change.newcomers:
            if newcomer.server_id not in current.member_ids:
                # A just removed server still gets the log for a moment. It may return with an empty directory, so its
                # progress restarts.
                self._followers.pop(newcomer.server_id, None)
                self._known = None
            change.catching_up[newcomer.server_id] = CatchUp(self._replica.log.last_index, now, began_ms=now)

    def advance(self) -> Entry | None:
        """Return the next configuration to append, if any, and reply to a completed change."""
        if self._is_uncommitted() or not self.has_committed_in_term():
            return None
        configuration = self._replica.log.configuration
        if self._under_way:
            self._under_way = False
            self._removal_grace_ms = self._replica.now + self._replica.options.election_timeout_min_ms
            self._tracker.wake_by(self._removal_grace_ms)
        if configuration.is_joint:
            return configuration_entry(self._replica.term, leave_joint(configuration))
        change = self.change
        if change is None:
            self.is_settled = self._removal_grace_ms is None
            return None
        if change.appended:
            self._end(change, ChangeOutcome.COMMITTED)
            return None
        return self._step_if_caught_up(change)

    def appended(self) -> None:
        """Record that the entry returned by `advance` is in the log and in effect."""
        self._under_way = True
        self._removal_grace_ms = None
        if self.change is not None:
            self.change.appended = True
            self.change.catching_up.clear()

    def outsider_in_later_term(self, server_id: ServerId) -> None:
        """Refuse the change if a catching-up server replies from a later term, which we do not adopt."""
        change = self.change
        if change is not None and server_id in change.catching_up:
            self._end(change, ChangeRefusal.NEW_SERVER_IN_LATER_TERM)

    def resign(self) -> None:
        """End leadership. Another leader may commit an appended step; any other step never commits."""
        if self.change is not None:
            self._end(self.change, ChangeOutcome.UNKNOWN if self.change.appended else ChangeRefusal.LEADERSHIP_LOST)

    def describe(self) -> ChangeProgress | None:
        """Return the requested change as plain data."""
        change = self.change
        if change is None:
            return None
        newcomers = tuple(
            NewcomerProgress(
                server_id, catch_up.round_number, self._match(server_id), catch_up.goal, catch_up.caught_up
            )
            for server_id, catch_up in change.catching_up.items()
        )
        return ChangeProgress(change.change_id, change.target, newcomers)

    def _match(self, server_id: ServerId) -> Index:
        progress = self._followers.get(server_id)
        return 0 if progress is None else progress.match

    def adjust_followers(self) -> bool:
        """Make `followers` the servers that get the log now; return True if they changed."""
        replica, log = self._replica, self._replica.log
        if self._removal_grace_ms is not None and replica.now >= self._removal_grace_ms:
            self._removal_grace_ms = None
        leaving = self._under_way or self._removal_grace_ms is not None
        known = (log.configuration_index, leaving, len(self.newcomers))
        if known == self._known:
            return False
        self._known = known
        recipient_ids = log.configuration.member_ids | {server.server_id for server in self.newcomers}
        if leaving:
            recipient_ids |= log.previous_configuration.member_ids
        recipient_ids -= {replica.server_id}
        for removed_id in [peer for peer in self._followers if peer not in recipient_ids]:
            del self._followers[removed_id]
        for server_id in sorted(recipient_ids.difference(self._followers)):
            self._followers[server_id] = Progress(
                log.last_index + 1,
                contact_ms=replica.now,
                advanced_ms=replica.now,
                halvings=FIRST_HALVINGS if replica.features.max_requests_in_flight == 1 else 0,
            )
        return True

    def has_committed_in_term(self) -> bool:
        """Return True if an entry of our term is committed, and with it all earlier entries."""
        replica = self._replica
        return replica.log.term_at(replica.applier.commit) == replica.term

    def _step_if_caught_up(self, change: Change) -> Entry | None:
        replica = self._replica
        for newcomer, catch_up in change.catching_up.items():
            refusal = catch_up.check(self._followers[newcomer], replica.log.last_index, replica.now, replica.options)
            if refusal is not None:
                self._end(change, refusal)
                return None
        if not all(catch_up.caught_up for catch_up in change.catching_up.values()):
            return None
        step = self._first_step(change.target)
        if isinstance(step, ChangeRefusal):
            # Checked again: a later handshake with a newcomer may have shown that it lacks the extension.
            self._end(change, step)
            return None
        return configuration_entry(replica.term, step, change.head)

    def _first_step(self, target: Configuration) -> Configuration | ChangeRefusal:
        replica, current = self._replica, self._replica.log.configuration
        involved = (current.member_ids | target.member_ids) - {replica.server_id}
        extended = not any(replica.lacks_configurations(server_id) for server_id in involved)
        features = replica.features
        return first_step(
            current,
            target,
            joint=features.joint if extended else JointConsensus.NEVER,
            learners=features.observers_in_configuration and extended,
        )

    def _refusal_at_present(self) -> ChangeRefusal | None:
        if not self.has_committed_in_term():
            return ChangeRefusal.NO_COMMIT_IN_TERM
        if self.change is not None or self._is_uncommitted() or self._replica.log.configuration.is_joint:
            return ChangeRefusal.CHANGE_UNDER_WAY
        return None

    def _is_uncommitted(self) -> bool:
        return self._replica.log.configuration_index > self._replica.applier.commit

    def _end(self, change: Change, result: ChangeOutcome | ChangeRefusal) -> None:
        self.change = None
        self._answer(change.change_id, result)

    def _answer(self, change_id: int, result: ChangeOutcome | ChangeRefusal) -> None:
        server_id, log = self._replica.server_id, self._replica.log
        match result:
            case ChangeRefusal():
                answer = ConfigurationResolved(
                    change_id=change_id, outcome=ChangeOutcome.REFUSED, refusal=result, leader=server_id
                )
            case ChangeOutcome.COMMITTED:
                position = LogId(log.configuration_index, log.term_at(log.configuration_index) or 0)
                answer = ConfigurationResolved(change_id=change_id, outcome=result, position=position, leader=server_id)
            case _:
                answer = ConfigurationResolved(change_id=change_id, outcome=result)
        self._replica.outbox.add(answer)
