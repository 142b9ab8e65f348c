"""Planted bugs: the simulator must find each of them, to prove that it detects this kind of bug.

A mutant replaces functions of the core while its context lasts. Real implementations made these mistakes, or the core's
documentation warns of them.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from consensus.core import election, membership
from consensus.core.effects import Outcome, ProposalResolved
from consensus.core.leader import Leader
from consensus.core.log import Log
from consensus.core.membership import Reconfiguration
from consensus.core.messages import AppendEntries, AppendReply, RequestVote, VoteReply
from consensus.core.model import Configuration, HardState, Index, LogId, ServerId, Term
from consensus.core.raft import Raft
from consensus.core.replica import Outbox, Replica
from consensus.core.replication import append_receiver
from consensus.core.replication.append_receiver import AppendReceiver
from consensus.core.replication.progress import Progress, ProgressTracker, SentAppend
from consensus.core.roles import ServerRole
from consensus.core.snapshots import SnapshotReceiver
from tests.simulation.consensus.profile import Kind


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug: its description, and the attributes it replaces."""

    name: str
    story: str
    changes: tuple[tuple[Any, str, Any], ...]
    strategy: str = "append"
    kind: Kind | None = None
    """The only kind of world that shows the bug; None: all kinds."""
    stalls: bool = False
    """True for a bug of progress; for any other, a history without progress proves nothing."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant the bug while the context lasts."""
        with ExitStack() as stack:
            for owner, attribute, replacement in self.changes:
                stack.enter_context(patch.object(owner, attribute, replacement))
            yield


_send: Callable[..., None] = Outbox.send


def _send_votes_at_once(self: Outbox, recipient: Any, message: Any, after: int = 0) -> None:
    _send(self, recipient, message, 0 if isinstance(message, VoteReply) else after)


def _send_vote_requests_at_once(self: Outbox, recipient: Any, message: Any, after: int = 0) -> None:
    _send(self, recipient, message, 0 if isinstance(message, RequestVote) else after)


def _send_append_replies_at_once(self: Outbox, recipient: Any, message: Any, after: int = 0) -> None:
    _send(self, recipient, message, 0 if isinstance(message, AppendReply) else after)


def _any_index_commits(_self: ProgressTracker, index: Index) -> bool:
    return index > 0


def _last_index(self: ProgressTracker) -> Index:
    return self._replica.log.last_index


def _vote_for_any_log(own: HardState, _last: LogId, request: RequestVote) -> bool:
    return request.term == own.term and own.voted_for in (None, request.candidate)


def _would_vote_for_any_log(own: HardState, _last: LogId, request: RequestVote) -> bool:
    return request.term > own.term


def _vote_again(own: HardState, last: LogId, request: RequestVote) -> bool:
    return request.term == own.term and request.last.at_least_as_up_to_date_as(last)


def _cut_before_every_append(_replica: Replica, request: AppendEntries) -> Index | None:
    return request.previous.index + 1 if request.entries else None


def _commit_whatever_is_there(replica: Replica, request: AppendEntries, _matched: Index) -> Index:
    return min(request.commit, replica.log.last_index)


def _follow_of_an_older_term(self: AppendReceiver, term: Term, leader: ServerId) -> bool:
    self._role.check_term(term)
    follower = self._role.as_follower
    if follower is None:
        return False
    follower.on_leader_contact(self._replica, leader)
    return True


def _match_by_index_only(self: Log, position: LogId) -> bool:
    return position.index <= self.last_index


_raft_init: Callable[..., None] = Raft.__init__


def _forget_the_vote(self: Raft, server_id: Any, configuration: Any, own: HardState, *rest: Any) -> None:
    _raft_init(self, server_id, configuration, replace(own, voted_for=None), *rest)


_truncate: Callable[[Log, Index], None] = Log.truncate_from


def _keep_durable_index(self: Log, index: Index) -> None:
    durable, writing = self.durable_index, list(self._writing)
    _truncate(self, index)
    self.durable_index = durable
    self._writing.clear()
    self._writing.extend(writing)


def _acknowledge_what_is_appended(self: Leader) -> None:
    replica = self._replica
    while self._pending:
        pending = self._pending.popleft()
        self._pending_bytes -= pending.size_bytes
        position = LogId(pending.last, replica.log.term_at(pending.last) or 0)
        replica.outbox.add(
            ProposalResolved(
                proposal_id=pending.proposal_id, outcome=Outcome.COMMITTED, position=position, leader=replica.server_id
            )
        )


def _refuse_on_resignation(self: Leader) -> None:
    for pending in self._pending:
        self._replica.outbox.add(ProposalResolved(proposal_id=pending.proposal_id, outcome=Outcome.NOT_LEADER))
    self._pending.clear()


def _answer_only_granted_votes(self: Replica, request: RequestVote, *, granted: bool, error: Any = None) -> None:
    if granted:
        after = 0 if request.pre_vote else self.hard_state_number
        self.outbox.send(
            request.candidate,
            VoteReply(
                term=request.term,
                granted=granted,
                correlation=request.correlation,
                pre_vote=request.pre_vote,
                error=error,
            ),
            after,
        )


def _never_back_off(_self: Progress, _request: SentAppend, _hint: Index) -> bool:
    return False


def _union(self: Configuration) -> tuple[frozenset[Any], ...]:
    return (self.voter_ids,)


def _learners_count(self: Configuration) -> tuple[frozenset[Any], ...]:
    return (self.member_ids,)


def _only_the_new(self: Configuration) -> tuple[frozenset[Any], ...]:
    return (frozenset(server.server_id for server in self.voters),)


_use_configuration: Callable[[Replica], None] = Replica._use_configuration


def _count_ourselves_too(self: Replica) -> None:
    _use_configuration(self)
    self.majorities = tuple(voters | {self.server_id} for voters in self.majorities)


def _always(_self: Reconfiguration) -> bool:
    return True


def _never(_self: Reconfiguration) -> bool:
    return False


def _switch_directly(_current: Configuration, target: Configuration, *, joint: bool, learners: bool) -> Configuration:
    del joint, learners
    return replace(target, learners=())


def _keep_truncated_configuration(self: Log, index: Index) -> None:
    known, newest = list(self._configurations), self.configuration
    _truncate(self, index)
    self._configurations, self.configuration = known, newest


def _newest_configuration(self: Log, _index: Index) -> Configuration:
    return self.configuration


def _never_superfluous(_self: SnapshotReceiver, _last: LogId) -> bool:
    return False


def _adopt_any_term(self: Replica, term: Term, *, of_a_leader: bool = False) -> None:
    del of_a_leader
    self.set_hard_state(HardState(term))


_check_term: Callable[..., bool] = ServerRole.check_term


def _follow_who_is_far_ahead(self: ServerRole, term: Term, *, of_a_leader: bool = False) -> bool:
    _check_term(self, term, of_a_leader=of_a_leader)
    return True


def _campaigns_early_despite_lease(self: Replica) -> bool:
    return not any(map(self.lacks_pre_vote, self.others))


MUTANTS = (
    Mutant(
        "vote-before-persist",
        "a vote leaves before it is durable",
        ((Outbox, "send", _send_votes_at_once),),
    ),
    Mutant(
        "vote-request-before-persist",
        "a candidate requests votes before its vote for itself is durable",
        ((Outbox, "send", _send_vote_requests_at_once),),
    ),
    Mutant(
        "append-reply-before-persist",
        "a follower reports entries as stored before they are durable",
        ((Outbox, "send", _send_append_replies_at_once),),
    ),
    Mutant(
        "old-term-by-counting",
        "entries of older terms are committed by counting replicas (Raft figure 8)",
        ((ProgressTracker, "_may_commit", _any_index_commits),),
        kind=Kind.FIGURE_8,
    ),
    Mutant(
        "leader-counts-itself-early",
        "a leader counts its own entries before they are durable",
        ((ProgressTracker, "_own_match", _last_index),),
    ),
    Mutant(
        "vote-for-any-log",
        "votes are granted without the up-to-date check",
        ((election, "may_vote", _vote_for_any_log), (election, "would_vote", _would_vote_for_any_log)),
    ),
    Mutant("vote-twice", "a second candidate gets a vote in the same term", ((election, "may_vote", _vote_again),)),
    Mutant(
        "truncate-matching-prefix",
        "an append cuts the log even if it agrees, so a delayed one loses acknowledged entries",
        ((append_receiver, "first_new_index", _cut_before_every_append),),
    ),
    Mutant(
        "commit-beyond-match",
        "a follower commits up to the leader's index although its own suffix was not compared",
        ((append_receiver, "proven_commit", _commit_whatever_is_there),),
    ),
    Mutant(
        "stale-append-accepted",
        "an append of an older term is accepted",
        ((AppendReceiver, "_follow", _follow_of_an_older_term),),
        kind=Kind.STORM,
    ),
    Mutant(
        "match-by-index-only",
        "the consistency check ignores the term of the previous entry",
        ((Log, "matches", _match_by_index_only),),
    ),
    Mutant("vote-forgotten", "a restart keeps the term but loses the vote", ((Raft, "__init__", _forget_the_vote),)),
    Mutant(
        "durable-beyond-truncation",
        "a truncation does not reduce the durable index",
        ((Log, "truncate_from", _keep_durable_index),),
    ),
    Mutant(
        "acknowledged-on-append",
        "an entry is acknowledged as committed when it is only appended",
        ((Leader, "_resolve_committed", _acknowledge_what_is_appended),),
    ),
    Mutant(
        "refused-on-resignation",
        "a deposed leader reports a proposal as refused instead of unknown",
        ((Leader, "resign", _refuse_on_resignation),),
    ),
    Mutant(
        "silence-for-no",
        "a refused vote request gets no reply",
        ((Replica, "answer_vote", _answer_only_granted_votes),),
        stalls=True,
    ),
    Mutant(
        "no-back-off",
        "a refused append does not move the leader back",
        ((Progress, "refused", _never_back_off),),
        stalls=True,
    ),
    Mutant(
        "joint-majority-of-the-union",
        "in joint consensus one majority of all servers decides",
        ((Configuration, "majorities", property(_union)),),
        kind=Kind.MEMBERSHIP,
    ),
    Mutant(
        "joint-majority-of-the-new",
        "in joint consensus the new servers decide alone",
        ((Configuration, "majorities", property(_only_the_new)),),
        kind=Kind.MEMBERSHIP,
    ),
    Mutant(
        "learner-counted-as-voter",
        "learners count toward majorities",
        ((Configuration, "majorities", property(_learners_count)),),
    ),
    Mutant(
        "leader-outside-counts-itself",
        "a leader that C_new removes counts toward its majority",
        ((Replica, "_use_configuration", _count_ourselves_too),),
    ),
    Mutant(
        "switch-without-joint-consensus",
        "a leader appends C_new directly, regardless of the number of changed servers",
        ((membership, "first_step", _switch_directly),),
        kind=Kind.MEMBERSHIP,
    ),
    Mutant(
        "change-before-own-term-commit",
        "a configuration is changed before an entry of the leader's term is committed",
        ((Reconfiguration, "has_committed_in_term", _always),),
        kind=Kind.MEMBERSHIP,
    ),
    Mutant(
        "change-before-the-last-is-committed",
        "a configuration follows an uncommitted one",
        ((Reconfiguration, "_is_uncommitted", _never),),
        kind=Kind.MEMBERSHIP,
    ),
    Mutant(
        "configuration-outlives-its-entry",
        "a truncated configuration stays in effect",
        ((Log, "truncate_from", _keep_truncated_configuration),),
        # If the leader appends, its first entry is its configuration, which hides the bug as soon as it arrives.
        "fetch",
        kind=Kind.MEMBERSHIP,
    ),
    Mutant(
        "snapshot-with-another-configuration",
        "a snapshot holds the newest configuration instead of the one in force at its last entry",
        ((Log, "configuration_at", _newest_configuration),),
    ),
    Mutant(
        "snapshot-over-a-better-log",
        "a snapshot replaces the log although the log holds all that it covers",
        ((SnapshotReceiver, "_is_superfluous", _never_superfluous),),
    ),
    Mutant(
        "term-without-bound",
        "one message can move the term to any value, even to the last one, after which no server campaigns",
        ((Replica, "adopt_term", _adopt_any_term),),
        kind=Kind.FAR_TERMS,
        stalls=True,
    ),
    Mutant(
        "leader-of-a-term-not-reached",
        "the sender of a term too far ahead is accepted as leader of the nearer term that the server adopts",
        ((ServerRole, "check_term", _follow_who_is_far_ahead),),
        kind=Kind.FAR_TERMS,
    ),
    Mutant(
        "evidence-outweighs-a-lease",
        "a server with a lease to keep accepts candidates after evidence that its leader has ended",
        ((Replica, "may_campaign_early", property(_campaigns_early_despite_lease)),),
        kind=Kind.ENDED,
    ),
)
"""Planted bugs of the core."""
