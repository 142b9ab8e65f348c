"""The state of a server in every role (Raft figure 2), and the few functions that change it.

`Replica` has the durable state: `hard_state` (currentTerm, votedFor) and `log`. A change is durable when its Persist
(an effect, numbered from 1) is durable. Roles decide; this module alone adopts a term, casts a vote or appends an
entry. So one place keeps the numbers of the corresponding Persists.

`Outbox` collects the effects of one step, in order, with at most one Persist, which comes first. The Persist carries
all durable changes of a step (hard state, truncation, entries), so one fsync covers them. Its number is known in
advance: dependent effects contain this number as `after`. Independent effects (an established leader's appends) contain
0 and do not wait for the Persist.

`Applier` has the volatile state: commit index and applied index. It passes committed entries to the state machine in
order, each once in a run of the process, including entries of earlier runs. After a restart the commit index is the
snapshot's index, or 0. It rises when a leader reports its commit index, or when this server leads and commits an entry.
The state machine then receives the entries after the snapshot again. Entries that left the tail are read back, one
`ReadEntries` at a time. To keep the order, newer entries are not applied before the read is complete.
"""

from collections import Counter
from random import Random

from consensus.core.drops import Drop
from consensus.core.effects import Apply, Effect, Install, Persist, ReadEntries, Restore, Send, SnapshotChange
from consensus.core.features import NO_EXTENSIONS, Extensions, Features, LeaderRecords
from consensus.core.log import Log, RecoveredLog, entry_bytes
from consensus.core.messages import AppendReply, Message, RefusalReason, RequestVote, VoteReply
from consensus.core.model import (
    MAX_NUMBER,
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


class Outbox:
    """The effects of one step, in order."""

    def __init__(self) -> None:
        self._number = 0
        self._hard_state: HardState | None = None
        self._truncate_from: Index | None = None
        self._first: Index = 0
        self._entries: tuple[Entry, ...] = ()
        self._encoded = b""
        self._snapshot: SnapshotChange | None = None
        self.changes_snapshot = False
        """True if this step changes the snapshot and therefore must not change entries."""
        self._stages = False
        self._effects: list[Effect] = []

    @property
    def staged_number(self) -> int:
        """The number of the Persist that contains this step's durable changes."""
        return self._number + 1

    def stage_hard_state(self, hard_state: HardState) -> int:
        """Make `hard_state` durable; return the number of its Persist."""
        self._hard_state = hard_state
        self._stages = True
        return self.staged_number

    def stage_log(
        self, truncate_from: Index | None, first: Index, entries: tuple[Entry, ...], encoded: bytes = b""
    ) -> int:
        """Make a change of the log durable; return the number of its Persist.

        Within a step, a truncation must precede all entries, and further entries must continue the staged entries.
        """
        if self._entries and truncate_from is None:
            self._encoded = self._encoded + encoded if self._encoded and encoded else b""
            self._entries += entries
        else:
            self._truncate_from = truncate_from
            self._first = first
            self._entries = entries
            self._encoded = encoded
        self._stages = True
        return self.staged_number

    def stage_snapshot(self, change: SnapshotChange) -> int:
        """Make a change of the snapshot durable, in a step without entries. Return the number of its Persist."""
        self._snapshot = change
        self.changes_snapshot = self._stages = True
        return self.staged_number

    def send(self, recipient: ServerId, message: Message, after: int = 0) -> None:
        """Send `message` once Persist `after` is durable."""
        self._effects.append(Send(recipient, message, after))

    def add(self, effect: Effect) -> None:
        """Add an effect other than a Send or a Persist."""
        self._effects.append(effect)

    def drain(self) -> list[Effect]:
        """Return the effects of the step and clear them."""
        effects, self._effects = self._effects, []
        if not self._stages:
            return effects
        self._number += 1
        persist = Persist(
            number=self._number,
            hard_state=self._hard_state,
            truncate_from=self._truncate_from,
            first=self._first,
            entries=self._entries,
            snapshot=self._snapshot,
            encoded=self._encoded,
        )
        self._forget_staged()
        effects.insert(0, persist)
        return effects

    def _forget_staged(self) -> None:
        self._stages = self.changes_snapshot = False
        self._snapshot = None
        self._hard_state = None
        self._truncate_from = None
        self._first = 0
        self._entries = ()
        self._encoded = b""


class Applier:
    """The commit index, and the index of the last entry passed to the state machine."""

    def __init__(self, log: Log, outbox: Outbox, options: Options) -> None:
        self._log = log
        self._outbox = outbox
        self._options = options
        self._read: int | None = None
        self._reads = 0
        covered = log.snapshot.last.index if log.snapshot is not None else 0
        self.commit: Index = covered
        self.applied: Index = covered

    def next_read_id(self) -> int:
        """Return a number for a `ReadEntries`, unique in this process."""
        self._reads += 1
        return self._reads

    def commit_up_to(self, index: Index) -> bool:
        """Raise the commit index (it never falls) and apply the entries up to it; return True if it rose."""
        if index <= self.commit:
            return False
        self.commit = index
        self._apply()
        return True

    def restore(self, snapshot: SnapshotDescription) -> None:
        """Reset the state machine to `snapshot`, which is ahead of it."""
        self._read = None
        self.commit = self.applied = snapshot.last.index
        self._outbox.add(Restore(snapshot))

    def entries_read(self, request_id: int, first: Index, entries: tuple[Entry, ...]) -> bool:
        """Apply entries read from storage; return False if the read is unknown here."""
        if request_id != self._read:
            return False
        self._read = None
        if first == self.applied + 1 and entries and self.applied + len(entries) <= self.commit:
            self._hand_over(entries, sum(map(entry_bytes, entries)))
        self._apply()
        return True

    def _apply(self) -> None:
        while self.applied < self.commit and self._read is None:
            first = self.applied + 1
            last = min(self.commit, self.applied + self._options.max_entries_per_append)
            entries = self._log.entries(first, last, self._options.max_bytes_per_append)
            if entries is None:
                self._read = self.next_read_id()
                self._outbox.add(
                    ReadEntries(
                        request_id=self._read, first=first, last=last, limit_bytes=self._options.max_bytes_per_append
                    )
                )
            else:
                self._hand_over(entries, self._log.size_bytes(first, first + len(entries) - 1))

    def _hand_over(self, entries: tuple[Entry, ...], size_bytes: int) -> None:
        self._outbox.add(Apply(self.applied + 1, entries, size_bytes))
        self.applied += len(entries)


TERM_STEP_MAX = 2**24
"""Limit for the change of our term by one message: otherwise one message of the highest term would end all elections.

A correct server is ahead by more than this only after 16 million lost elections (half a year at one per second). Even a
lead of 2**30 terms needs only 64 messages. An attacker needs 2**39 forged messages to exhaust the terms.
"""
_MAX_KNOWN_PEERS = 256


class Replica:
    """State and operations that follower, candidate and leader share."""

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
        leader_records: LeaderRecords | None = None,
    ) -> None:
        self.server_id = server_id
        self.hard_state = hard_state
        self.term = hard_state.term
        """The current term: the latest one seen, but one message raises it by at most `TERM_STEP_MAX`."""
        self.hard_state_number = 0
        self.log = Log(log, configuration)
        self.options = options
        self.features = features
        self.random = random
        self.now = now
        self.cluster_id = cluster_id
        self.leader_records = leader_records or LeaderRecords()
        self.outbox = Outbox()
        self.applier = Applier(self.log, self.outbox, options)
        self.extensions_of: dict[ServerId, Extensions] = {}
        self.durable_number = 0
        self.disk_full = False
        self.dropped: Counter[Drop] = Counter()
        self._correlation = random.randrange(2**32)
        self._use_configuration()

    @property
    def may_campaign(self) -> bool:
        """Return True if this server may lead, by the configurations in its log."""
        return self.may_lead(self.server_id)

    def _use_configuration(self) -> None:
        """Use the log's new configuration: compute its sets of servers once, because many callers use them."""
        self._configuration = self.log.configuration
        self.voters = self._configuration.voter_ids
        """The servers that count toward any majority, by the latest configuration in the log."""
        self.members = self._configuration.member_ids
        """The servers that get the log."""
        self.majorities = self._configuration.majorities
        """The voter sets; a decision needs a majority in each of them."""
        self.others = tuple(sorted(self.voters - {self.server_id}))
        """The other voters, in order of id: in the order of a set, runs with the same random seed would differ."""

    def may_lead(self, server_id: ServerId) -> bool:
        """Return True if the server is a voter of the latest configuration, or of the previous one during a change.

        The previous configuration counts while the latest is uncommitted. Without this rule, the removal of server 1
        from {1, 2} could deadlock. Server 1 has the longer log, so it denies its vote to server 2.
        """
        log = self.log
        uncommitted = log.configuration_index > self.applier.commit
        return server_id in self.voters or (uncommitted and server_id in log.previous_configuration.voter_ids)

    def is_foreign(self, cluster_id: str | None) -> bool:
        """Return True if both cluster ids are known and differ."""
        return None not in (cluster_id, self.cluster_id) and cluster_id != self.cluster_id

    def random_election_deadline(self) -> Milliseconds:
        """Return the deadline of a new randomized election timeout that begins now (Raft section 5.2)."""
        shortest, longest = self.options.election_timeout_min_ms, self.options.election_timeout_max_ms
        return self.now + self.random.randint(shortest, longest)

    def next_correlation(self) -> int:
        """Return a number that is unique in this process, and unlikely to repeat one of the previous process."""
        self._correlation += 1
        return self._correlation

    def learn_extensions(self, peer: ServerId, extensions: Extensions) -> None:
        """Store the extensions from the handshake with `peer`, for a bounded number of peers."""
        if peer in self.extensions_of or len(self.extensions_of) < _MAX_KNOWN_PEERS:
            self.extensions_of[peer] = extensions
        else:
            self.dropped[Drop.TOO_MANY_PEER_EXTENSIONS] += 1

    def lacks_pre_vote(self, peer: ServerId) -> bool:
        """Return True if the protocol or the handshake with `peer` excludes pre-vote requests."""
        known = self.extensions_of.get(peer)
        return not self.features.pre_vote or (known is not None and not known.pre_vote)

    @property
    def may_campaign_early(self) -> bool:
        """Return True if this server may campaign early after the end of the leader's process.

        It may not if a lease depends on the election timeout, or if another voter is known to lack pre-vote.
        """
        return self.options.lease_promise_ms is None and not any(map(self.lacks_pre_vote, self.others))

    def lacks_configurations(self, peer: ServerId) -> bool:
        """Return True if the handshake with `peer` excluded joint configurations and learners."""
        known = self.extensions_of.get(peer)
        return known is not None and not known.configurations

    def keeps_leases(self, peer: ServerId) -> bool:
        """Return True if `peer` promised to refuse other candidates for at least the length of our lease."""
        promised_ms = self.extensions_of.get(peer, NO_EXTENSIONS).lease_ms
        return promised_ms is not None and promised_ms >= self.options.lease_ms

    def understands_transfer(self, peer: ServerId) -> bool:
        """Return True if `peer` supports TimeoutNow according to its handshake."""
        return self.features.transfer and self.extensions_of.get(peer, NO_EXTENSIONS).transfer

    def adopt_term(self, term: Term, *, of_a_leader: bool = False) -> None:
        """Adopt a higher term without a vote in it, but raise ours by at most TERM_STEP_MAX.

        A server at term 0 has neither voted nor stored anything, so it adopts its leader's term directly.
        """
        bound = MAX_NUMBER if of_a_leader and self.term == 0 else self.term + TERM_STEP_MAX
        self.set_hard_state(HardState(min(term, bound)))

    def set_hard_state(self, hard_state: HardState) -> None:
        """Change term or vote; dependent effects wait for `hard_state_number`."""
        self.hard_state = hard_state
        self.term = hard_state.term
        self.hard_state_number = self.outbox.stage_hard_state(hard_state)

    def append(self, entries: tuple[Entry, ...], truncate_from: Index | None = None, encoded: bytes = b"") -> None:
        """Change the log, in memory now and durably with this step's Persist; `encoded` are the entries' bytes."""
        if truncate_from is not None:
            self.log.truncate_from(truncate_from)
        first = self.log.last_index + 1
        self.log.append(entries, encoded)
        self.log.written(self.outbox.stage_log(truncate_from, first, entries, encoded))
        if self.log.configuration is not self._configuration:
            self._use_configuration()

    def install(self, snapshot: SnapshotDescription) -> int:
        """Replace the log with a complete received snapshot; return the number of the Persist."""
        self.log.replace(snapshot)
        self._use_configuration()
        number = self.outbox.stage_snapshot(Install(snapshot))
        self.log.written(number)
        self.applier.restore(snapshot)
        return number

    def answer_vote(self, request: RequestVote, *, granted: bool, error: RefusalReason | None = None) -> None:
        """Reply to a vote request.

        The reply waits for the Persist of a vote or a term; a granted pre-vote does not wait.
        """
        term = request.term if granted else self.term
        after = 0 if granted and request.pre_vote else self.hard_state_number
        reply = VoteReply(
            term=term, granted=granted, correlation=request.correlation, pre_vote=request.pre_vote, error=error
        )
        self.outbox.send(request.candidate, reply, after)

    def refuse_append(self, recipient: ServerId, correlation: int, hint: Index) -> None:
        """Refuse an append, which must not have changed more than the term of this server."""
        reply = AppendReply(term=self.term, success=False, next_index=hint, correlation=correlation)
        self.outbox.send(recipient, reply, self.hard_state_number)
