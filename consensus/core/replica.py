"""What a replica has in every role: the state of Raft's figure 2, and the few acts that touch it.

`hard_state` (currentTerm, votedFor) and `log` are durable once the Persist that carries them is; commit and applied
index are volatile. Roles decide, this module changes: a term is adopted, a vote cast and an entry appended here and
nowhere else, so the numbers of the Persists that these rest on are kept in one place.
"""

from collections import Counter
from random import Random

from consensus.core.applier import Applier
from consensus.core.assembly import IncomingSnapshot
from consensus.core.configuration import possible_configuration
from consensus.core.effects import Install
from consensus.core.extensions import NO_EXTENSIONS, Extensions
from consensus.core.features import Features
from consensus.core.log import Log, RecoveredLog
from consensus.core.messages import AppendReply, RequestVote, VoteReply
from consensus.core.model import (
    Configuration,
    Entry,
    HardState,
    Index,
    Milliseconds,
    ServerId,
    SnapshotDescription,
    Term,
)
from consensus.core.options import Options
from consensus.core.outbox import Outbox
from consensus.core.pull_messages import PullError

MAX_NUMBER = 2**63 - 1
"""Terms, indexes and correlations are signed 64-bit on the wires."""
TERM_STEP_MAX = 2**24
"""How far one message moves our term at most: otherwise a single message of the highest term would end all elections.

An honest server gets as far ahead only by losing 16 million elections (half a year at one in a second), and then 64
messages bridge 2**30 terms. Whoever forges messages needs 2**39 of them to use the terms up.
"""
_MAX_KNOWN_PEERS = 256


class _Sets:
    """A configuration's sets of servers, computed once: every answer of a follower asks for them."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.majorities = configuration.majorities
        self.voters = configuration.voter_ids
        self.members = configuration.member_ids
        self.is_possible = possible_configuration(configuration)


class Replica:
    """State and acts that are common to follower, candidate and leader."""

    def __init__(
        self,
        server_id: ServerId,
        configuration: Configuration,
        hard_state: HardState,
        log: RecoveredLog,
        options: Options,
        features: Features,
        random: Random,
        now: Milliseconds,
        cluster_id: str | None = None,
    ) -> None:
        self.server_id = server_id
        self.hard_state = hard_state
        self.hard_state_number = 0
        self.log = Log(log, configuration)
        self.options = options
        self.features = features
        self.random = random
        self.now = now
        self.cluster_id = cluster_id
        self.outbox = Outbox()
        self.applier = Applier(self.log, self.outbox, options)
        self.extensions_of: dict[ServerId, Extensions] = {}
        self.assembly: IncomingSnapshot | None = None
        self.durable_number = 0
        self.disk_full = False
        self.dropped: Counter[str] = Counter()
        self._correlation = random.randrange(2**32)
        self._sets = _Sets(self.log.configuration)

    @property
    def term(self) -> Term:
        """The latest term that this server has seen."""
        return self.hard_state.term

    @property
    def voters(self) -> frozenset[ServerId]:
        """Who counts towards any majority, by the latest configuration in the log."""
        return self._current_sets.voters

    @property
    def members(self) -> frozenset[ServerId]:
        """Who gets the log, by the latest configuration in the log."""
        return self._current_sets.members

    @property
    def others(self) -> tuple[ServerId, ...]:
        """The other voters, in order (never in the order of a set: a seed must give the same run)."""
        return tuple(sorted(self.voters - {self.server_id}))

    @property
    def majorities(self) -> tuple[frozenset[ServerId], ...]:
        """The sets of voters of which each must agree by a majority of its own."""
        return self._current_sets.majorities

    @property
    def configuration_is_possible(self) -> bool:
        """Whether the latest configuration could ever have been agreed on."""
        return self._current_sets.is_possible

    @property
    def may_campaign(self) -> bool:
        """Whether we may be elected, as far as our log tells."""
        return self.may_lead(self.server_id)

    @property
    def _current_sets(self) -> "_Sets":
        if self._sets.configuration is not self.log.configuration:
            self._sets = _Sets(self.log.configuration)
        return self._sets

    def may_lead(self, server_id: ServerId) -> bool:
        """Whether it votes by the latest configuration, or by the one before while the latest may be uncommitted.

        Else {1, 2} removing 1 could come to a standstill: 2 needs the vote of 1, whose log is longer.
        """
        log = self.log
        uncommitted = log.configuration_index > self.applier.commit
        return server_id in self.voters or (uncommitted and server_id in log.previous_configuration.voter_ids)

    def is_foreign(self, cluster_id: str | None) -> bool:
        """Whether a cluster id contradicts ours; one that either side does not know yet contradicts nothing."""
        return None not in (cluster_id, self.cluster_id) and cluster_id != self.cluster_id

    def random_election_deadline(self) -> Milliseconds:
        """A fresh randomized election timeout from now on (Raft section 5.2)."""
        shortest, longest = self.options.election_timeout_min_ms, self.options.election_timeout_max_ms
        return self.now + self.random.randint(shortest, longest)

    def next_correlation(self) -> int:
        """A number that no other request of this process carries, and none of the process before by chance."""
        self._correlation += 1
        return self._correlation

    def learn_extensions(self, peer: ServerId, extensions: Extensions) -> None:
        """Remember what the handshake with `peer` settled, for a bounded number of peers."""
        if peer in self.extensions_of or len(self.extensions_of) < _MAX_KNOWN_PEERS:
            self.extensions_of[peer] = extensions
        else:
            self.dropped["extensions of too many peers"] += 1

    def lacks_pre_vote(self, peer: ServerId) -> bool:
        """Whether the protocol or the handshake with `peer` rules pre-vote requests out."""
        known = self.extensions_of.get(peer)
        return not self.features.pre_vote or (known is not None and not known.pre_vote)

    def lacks_configurations(self, peer: ServerId) -> bool:
        """Whether the handshake with `peer` said that it cannot take joint configurations and learners."""
        known = self.extensions_of.get(peer)
        return known is not None and not known.configurations

    def keeps_leases(self, peer: ServerId) -> bool:
        """Whether `peer` has said that it refuses other candidates for as long as a lease of ours may last."""
        promised_ms = self.extensions_of.get(peer, NO_EXTENSIONS).lease_ms
        return promised_ms is not None and promised_ms >= self.options.election_timeout_min_ms

    def understands_transfer(self, peer: ServerId) -> bool:
        """Whether TimeoutNow may be sent to `peer`; not before a handshake has said so."""
        return self.features.transfer and self.extensions_of.get(peer, NO_EXTENSIONS).transfer

    def adopt_term(self, term: Term, *, of_a_leader: bool = False) -> None:
        """All servers: a higher term is taken over, without a vote in it, but not by more than TERM_STEP_MAX.

        A server at term 0 has neither voted nor stored anything, so it takes its leader's term at once.
        """
        bound = MAX_NUMBER if of_a_leader and self.term == 0 else self.term + TERM_STEP_MAX
        self.set_hard_state(HardState(min(term, bound)))

    def set_hard_state(self, hard_state: HardState) -> None:
        """Change term or vote; whatever rests on it waits for `hard_state_number`."""
        self.hard_state = hard_state
        self.hard_state_number = self.outbox.stage_hard_state(hard_state)

    def append(self, entries: tuple[Entry, ...], truncate_from: Index | None = None) -> None:
        """Change the log, in memory now and durably with this step's Persist."""
        if truncate_from is not None:
            self.log.truncate_from(truncate_from)
        first = self.log.last_index + 1
        self.log.append(entries)
        self.log.written(self.outbox.stage_log(truncate_from, first, entries))

    def install(self, snapshot: SnapshotDescription) -> int:
        """Discard the log for a snapshot that was received whole; returns the number of the Persist that does."""
        self.log.replace(snapshot)
        number = self.outbox.stage_snapshot(Install(snapshot))
        self.log.written(number)
        self.applier.restore(snapshot)
        return number

    def answer_vote(self, request: RequestVote, *, granted: bool, error: PullError | None = None) -> None:
        """Answer a vote request; vote and term wait for their Persist, a granted pre-vote rests on nothing durable."""
        term = request.term if granted else self.term
        after = 0 if granted and request.pre_vote else self.hard_state_number
        reply = VoteReply(term, granted, request.correlation, request.pre_vote, error)
        self.outbox.send(request.candidate, reply, after)

    def refuse_append(self, recipient: ServerId, correlation: int, hint: Index) -> None:
        """Answer an append that changed nothing but perhaps our term."""
        reply = AppendReply(self.term, success=False, next_index=hint, correlation=correlation)
        self.outbox.send(recipient, reply, self.hard_state_number)
