"""The judge: it observes every server's effects, knows the complete world, and reports impossible states.

    election safety        at most one leader per term; one vote per term, also across restarts
    leader append-only     a leader never truncates its log
    log matching           an index and a term identify one entry and, by induction over the previous term, one prefix
    leader completeness    a new leader holds all entries committed before
    state machine safety   every server applies the same entry at the same index, in order, once per run
    acknowledgment        acknowledged entries are on the disk of the server
    durable commitment     entries committed by a leader are on the disks of a majority of each voter set of its
                           configuration. Acknowledged entries are never lost
    one change at a time   a leader appends a configuration after the previous one is committed; C_old,new follows only
                           C_old, and only C_new follows C_old,new. Other changes add or remove one voter
    monotonic values       terms, the vote within a term, and the commit index sent by a leader never go back
    answers                every request is answered once; a proposal is refused only if it can never be committed
    reads                  a read sees at least all writes acknowledged to any client before the read began
    exactly once           all servers execute a request at the same single index, even if the request is repeated

The judge builds its view of a log from `Persist` effects only, so it does not depend on the replica's own state.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from consensus.core.effects import (
    Answer,
    Apply,
    ChangeOutcome,
    ConfigurationResolved,
    Effect,
    Install,
    Outcome,
    Persist,
    ProposalAccepted,
    ProposalResolved,
    ReadReady,
    ReadRefused,
    Role,
    RoleChanged,
    TransferEnded,
)
from consensus.core.entry_data import configuration_in
from consensus.core.events import Event, Received
from consensus.core.features import ZMQ_RAFT, Features, JointConsensus
from consensus.core.messages import AppendEntries, AppendReply, Fetch, FetchReply, Message, RequestVote, VoteReply
from consensus.core.model import (
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Index,
    LogId,
    ServerId,
    SnapshotDescription,
    Term,
)
from tests.simulation.consensus.accounts import AccountError, Accounts
from tests.simulation.consensus.marks import Marks
from tests.simulation.consensus.state import chained


class ViolationError(AssertionError):
    """An invariant was broken: a bug in the core, or a detected mutant."""


class StandstillError(ViolationError):
    """A healed world does not make progress."""


@dataclass(slots=True)
class Shadow:
    """The judge's own view of one server."""

    volatile: list[Entry] = field(default_factory=list)
    durable: list[Entry] = field(default_factory=list)
    hard_state: HardState = field(default_factory=lambda: HardState(0))
    writing: list[Persist] = field(default_factory=list)
    hard_state_number: int = 0
    """Number of the last Persist included in `hard_state`."""
    applied: Index = 0
    term: Term = 0
    leads: Term | None = None
    sent_commit: Index = 0
    known: Index = 0
    """End of the log before the current step: the commitments of that step depend only on entries up to it."""


def apply_persist(entries: list[Entry], persist: Persist, committed: list[Entry]) -> None:
    """Change a list of entries as the effect specifies; for an installed snapshot, use its entries in `committed`."""
    if isinstance(persist.snapshot, Install):
        entries[:] = committed[: persist.snapshot.snapshot.last.index]
    if persist.truncate_from is not None:
        del entries[persist.truncate_from - 1 :]
    if persist.entries:
        if persist.first != len(entries) + 1:
            raise ViolationError(f"Persist leaves a gap: first {persist.first} after {len(entries)} entries")
        entries.extend(persist.entries)


class Checker:
    """The judge's state of one history."""

    def __init__(self, servers: list[ServerId], configuration: Configuration, features: Features) -> None:
        self._features = features
        self.shadows = {server: Shadow() for server in servers}
        self.marks = Marks()
        self.steps = 0
        self._accounts = Accounts()
        self.committed: list[Entry] = []
        self._committed_in: list[Term] = []
        self._chains = [0]
        self._configured: list[tuple[Index, Configuration]] = [(0, configuration)]
        self.executed_at: dict[int, Index] = {}
        self._reads: dict[int, Index] = {}
        self._highest_acknowledged: Index = 0
        self.acknowledged: dict[int, Index] = {}
        self.refused: set[bytes] = set()
        self.leaders: dict[Term, ServerId] = {}
        self.configuration = configuration
        """The latest committed configuration."""
        self._settled_configuration = configuration
        self.changes = 0
        self._requested: dict[int, tuple[ServerId, Configuration]] = {}
        self._votes: dict[tuple[Term, ServerId], ServerId] = {}
        self._entries: dict[tuple[Index, Term], tuple[Entry, Term]] = {}
        self._proposals: dict[int, tuple[bytes, ...]] = {}
        self._accepted: dict[int, LogId] = {}

    def proposed(self, proposal_id: int, commands: tuple[bytes, ...]) -> None:
        """Record commands submitted by a client; every command is unique."""
        self._proposals[proposal_id] = commands

    def request_sent(self, server: ServerId, answer: type[Answer], number: int) -> None:
        """Record a request of a client or an operator, and the type of its answer."""
        if answer is ReadReady:
            self._reads[number] = self._highest_acknowledged
        self._accounts.request_sent(server, answer, number)

    def record_answer(self, server: ServerId, answer: ReadReady | ReadRefused | TransferEnded) -> None:
        try:
            match answer:
                case ReadReady(read_id, index):
                    self._accounts.record_answer(server, ReadReady, read_id)
                    if index < self._reads.pop(read_id):
                        raise ViolationError(f"server {server} answers {answer}, but more was acknowledged before")
                case ReadRefused(read_id):
                    self._accounts.record_answer(server, ReadReady, read_id)
                case TransferEnded(transfer_id):
                    self._accounts.record_answer(server, TransferEnded, transfer_id)
        except AccountError as error:
            raise ViolationError(str(error)) from error

    def stepped(self, server: ServerId, event: Event, effects: list[Effect]) -> None:
        """Check a step of a core, before its effects are performed."""
        self.steps += 1
        shadow = self.shadows[server]
        self.marks.stepped(server, event, effects, shadow.volatile, led=shadow.leads is not None)
        # The whole step is one moment: a leader deposed by an append may truncate in the same step.
        changes = [effect for effect in effects if isinstance(effect, RoleChanged)]
        for change in changes:
            self.shadows[server].leads = change.term if change.role is Role.LEADER else None
        self.shadows[server].known = len(self.shadows[server].volatile)
        for effect in effects:
            if isinstance(effect, Persist):
                self._staged(server, effect)
        for change in changes:
            if change.role is Role.LEADER:
                self._elected(server, change.term)
        try:
            if isinstance(event, Received):
                self._accounts.received(server, event.sender, event.message, effects)
            self._accounts.stepped(server, effects, leads=self.shadows[server].leads is not None)
        except AccountError as error:
            raise ViolationError(f"{error}, at {event}") from error

    def persisted(self, server: ServerId, number: int) -> None:
        """Record that the disk of `server` completed the Persists up to `number`."""
        shadow = self.shadows[server]
        while shadow.writing and shadow.writing[0].number <= number:
            self._now_durable(shadow, shadow.writing.pop(0))

    def hard_state_persisted(self, server: ServerId, number: int) -> None:
        """Record that the hard states of the Persists up to `number` are durable, but possibly not their entries."""
        shadow = self.shadows[server]
        for persist in shadow.writing:
            if persist.hard_state is not None and shadow.hard_state_number < persist.number <= number:
                shadow.hard_state = persist.hard_state
        shadow.hard_state_number = max(shadow.hard_state_number, number)

    def sent(self, server: ServerId, message: Message) -> None:
        """Check a message that leaves the machine."""
        match message:
            case RequestVote(pre_vote=False, term=term):
                self._voted(server, term, server)
            case AppendEntries(commit=commit) | FetchReply(commit=commit, error=None):
                self._check_sent_commit(server, commit)
            case Fetch(position=position, term=term):
                self._acknowledged(server, term, position.index)
            case _:
                pass

    def reply_sent(self, server: ServerId, recipient: ServerId, message: Message) -> None:
        """Check a reply that leaves the machine, such as a vote."""
        match message:
            case VoteReply(granted=True, pre_vote=False, term=term):
                self._voted(server, term, recipient)
            case AppendReply(success=True, next_index=next_index, term=term):
                self._acknowledged(server, term, next_index - 1)
            case _:
                pass

    def _acknowledged(self, server: ServerId, term: Term, index: Index) -> None:
        """Check that the disk holds the log up to `index`; acknowledgments of an older term may be outdated."""
        shadow = self.shadows[server]
        durable_index = len(shadow.durable)
        if index > durable_index and term == shadow.hard_state.term:
            raise ViolationError(
                f"server {server} acknowledges {index}, and its disk holds the log up to {durable_index}"
            )

    def applied(self, server: ServerId, effect: Apply) -> None:
        """Check committed entries passed to a state machine."""
        shadow = self.shadows[server]
        if effect.first != shadow.applied + 1 or not effect.entries:
            raise ViolationError(f"server {server} applies {effect.first} after {shadow.applied}")
        for index, entry in enumerate(effect.entries, start=effect.first):
            if index > len(self.committed):
                self._commit(server, index, entry)
            elif self.committed[index - 1] != entry:
                raise ViolationError(
                    f"state machine safety: server {server} applies {entry} at {index}, "
                    f"where {self.committed[index - 1]} was applied before"
                )
        shadow.applied += len(effect.entries)

    def executed(self, server: ServerId, index: Index, value: int) -> None:
        """Check that every server executes a client's write at the same index."""
        known = self.executed_at.setdefault(value, index)
        if known != index:
            raise ViolationError(f"exactly once: server {server} executes at {index} what was executed at {known}")

    def accepted(self, server: ServerId, accepted: ProposalAccepted) -> None:
        """Check that an accepted proposal is in the leader's log."""
        commands, position = self._proposals.get(accepted.proposal_id), accepted.position
        log = self.shadows[server].volatile[: position.index]
        if commands is None or accepted.proposal_id in self._accepted:
            raise ViolationError(f"server {server} accepts proposal {accepted.proposal_id} too late, or twice")
        if tuple(entry.data for entry in log[-len(commands) :]) != commands or log[-1].term != position.term:
            raise ViolationError(f"server {server} reports {accepted}, but its log has another entry there")
        self._accepted[accepted.proposal_id] = position

    def resolved(self, server: ServerId, resolve: ProposalResolved) -> None:
        commands = self._proposals.pop(resolve.proposal_id, None)
        if commands is None:
            raise ViolationError(f"server {server} answers proposal {resolve.proposal_id} twice")
        accepted = self._accepted.pop(resolve.proposal_id, None)
        if accepted is not None and resolve.outcome is not Outcome.UNKNOWN and resolve.position != accepted:
            raise ViolationError(f"server {server} reports {resolve} for a proposal accepted at {accepted}")
        match resolve.outcome:
            case Outcome.COMMITTED:
                self._check_acknowledged(server, resolve, commands)
            case Outcome.NOT_LEADER | Outcome.BUSY:
                self.refused.update(commands)
            case Outcome.UNKNOWN:
                pass

    def change_requested(self, server: ServerId, change_id: int, target: Configuration) -> None:
        """Record a configuration requested by a client."""
        self._requested[change_id] = (server, target)

    def possible_configurations(self) -> Iterator[Configuration]:
        """Yield the configurations in effect in any log, and the requested ones."""
        yield self.configuration
        for shadow in self.shadows.values():
            for entry in shadow.volatile[self._configured[-1][0] :]:
                if (configuration := configuration_in(entry)) is not None:
                    yield configuration
        for _, target in self._requested.values():
            yield target

    def explains_missing_election(self, lost: Collection[ServerId]) -> bool:
        """Return True if the other servers cannot elect a leader from their disks, but could with the lost servers.

        Otherwise the logs themselves prevent an election, and the lost servers are not the cause.
        """
        left = self.shadows.keys() - lost
        return not self._may_elect(left) and self._may_elect(self.shadows)

    def _may_elect(self, present: Collection[ServerId]) -> bool:
        """Return True if one of these servers could win an election among them.

        A server requests the votes of the voters in its own log, and they reject a log less up to date than their own.
        A server without the entry that made it a voter does not campaign, regardless of the length of its log.
        """
        logs = {server: self.shadows[server].durable for server in present}
        return any(self._may_win(server, logs) for server in logs)

    def _may_win(self, server: ServerId, logs: Mapping[ServerId, list[Entry]]) -> bool:
        log = logs[server]
        named = [found for entry in reversed(log) if (found := configuration_in(entry)) is not None]
        newest, before = [*named, self._configured[0][1], self._configured[0][1]][:2]
        willing = {voter for voter, other in logs.items() if _rank(log) >= _rank(other)}
        return server in newest.voter_ids | before.voter_ids and _is_majority(willing, newest)

    def change_resolved(self, server: ServerId, resolved: ConfigurationResolved) -> None:
        owner, target = self._requested.pop(resolved.change_id, (None, None))
        if owner != server or target is None:
            raise ViolationError(f"server {server} answers change {resolved.change_id} twice")
        position = resolved.position
        if resolved.outcome is ChangeOutcome.COMMITTED and position is not None:
            self._committed_by(server, position.index)
            if self._configuration_at(position.index) != target:
                raise ViolationError(f"server {server} reports {resolved}, but the log has another entry there")

    def crashed(self, server: ServerId) -> None:
        """Discard the volatile view; recovery shows how much of the unfinished writes survived."""
        shadow = self.shadows[server]
        shadow.applied = shadow.sent_commit = 0
        shadow.leads = None
        self._accounts.crashed(server)
        self._requested = {number: known for number, known in self._requested.items() if known[0] != server}
        self.marks.crashed(server)

    def restored(self, server: ServerId, snapshot: SnapshotDescription, chain: int) -> None:
        """Check that a snapshot restores the state that the log would have produced."""
        last = snapshot.last
        known = last.index <= len(self.committed) and self.committed[last.index - 1].term == last.term
        if not known or self._chains[last.index] != chain:
            raise ViolationError(f"server {server} restores a state that is not that of the log up to {last}")
        if self._features is not ZMQ_RAFT and snapshot.configuration != self._configuration_at(last.index):
            # In ØMQ Raft a snapshot comes with the members of a later moment (`zmq_sockets`).
            raise ViolationError(f"server {server} restores a snapshot with another configuration than that of {last}")
        self.shadows[server].applied = last.index

    def recovered(self, server: ServerId, hard_state: HardState, first: Index, entries: list[Entry]) -> None:
        """Check the recovered state: everything durable, and possibly some of the unfinished writes.

        The log begins at `first`. A snapshot covers the entries before it; it is checked when it is restored.
        """
        shadow = self.shadows[server]
        hard_states = [
            shadow.hard_state,
            *(
                persist.hard_state
                for persist in shadow.writing
                if persist.hard_state is not None and persist.number > shadow.hard_state_number
            ),
        ]
        logs = [list(shadow.durable)]
        for persist in shadow.writing:
            logs.extend(_partly_done(logs[-1], persist, self.committed))
        found = next((log for log in logs if log[first - 1 :] == entries and len(log) >= first - 1), None)
        if hard_state not in hard_states or found is None:
            raise ViolationError(
                f"server {server} recovered {hard_state} and {len(entries)} entries, which no crash can have left"
            )
        shadow.writing.clear()
        shadow.hard_state_number = 0
        shadow.term = hard_state.term
        shadow.hard_state, shadow.durable, shadow.volatile = hard_state, list(found), list(found)

    def check_settled(self) -> None:
        """Check at the end that no refused command is committed."""
        contents = {entry.data for entry in self.committed if entry.kind == EntryKind.COMMAND}
        wrong = contents & self.refused
        if wrong:
            raise ViolationError(f"refused and yet committed: {sorted(wrong)[:3]}")

    def _staged(self, server: ServerId, persist: Persist) -> None:
        shadow = self.shadows[server]
        shadow.writing.append(persist)
        if persist.hard_state is not None:
            if persist.hard_state.term < shadow.term:
                raise ViolationError(f"server {server} goes back from term {shadow.term} to {persist.hard_state}")
            shadow.term = persist.hard_state.term
        if isinstance(persist.snapshot, Install) and (
            shadow.leads is not None or persist.snapshot.snapshot.last.index <= shadow.applied
        ):
            raise ViolationError(f"server {server} discards its log for a snapshot that it does not need")
        if persist.truncate_from is not None:
            if shadow.leads is not None:
                raise ViolationError(f"leader append-only: {server} truncates from {persist.truncate_from}")
            if persist.truncate_from <= shadow.applied:
                raise ViolationError(f"server {server} truncates {persist.truncate_from}, which it has applied")
        apply_persist(shadow.volatile, persist, self.committed)
        if shadow.leads is not None:
            self._check_change(server, persist)
        for index, entry in enumerate(persist.entries, start=persist.first):
            previous = shadow.volatile[index - 2].term if index > 1 else 0
            known = self._entries.setdefault((index, entry.term), (entry, previous))
            if known != (entry, previous):
                raise ViolationError(f"log matching: two entries at index {index} in term {entry.term}")

    def _now_durable(self, shadow: Shadow, persist: Persist) -> None:
        apply_persist(shadow.durable, persist, self.committed)
        if persist.hard_state is not None and persist.number > shadow.hard_state_number:
            shadow.hard_state = persist.hard_state

    def _elected(self, server: ServerId, term: Term) -> None:
        known = self.leaders.setdefault(term, server)
        if known != server:
            raise ViolationError(f"election safety: {known} and {server} both lead term {term}")
        # Entries committed in this or a later term do not concern the new leader: its votes may have been in transit
        # for a long time.
        count = len(self.committed)
        while count and self._committed_in[count - 1] >= term:
            count -= 1
        log = self.shadows[server].volatile
        if any(older.term < term for older in log[len(self.committed) : -1]):
            self.marks.see("leader elected with uncommitted entries of older terms")
        if len(log) < count or (count and log[count - 1] != self.committed[count - 1]):
            raise ViolationError(f"leader completeness: {server} leads term {term} without all committed entries")

    def _check_change(self, server: ServerId, persist: Persist) -> None:
        """Check that a leader appends another configuration only after the last one in its log is committed."""
        log = self.shadows[server].volatile
        for index, entry in enumerate(persist.entries, start=persist.first):
            if entry.kind != EntryKind.CONFIGURATION:
                continue
            place = next((at for at in range(index - 1, 0, -1) if log[at - 1].kind == EntryKind.CONFIGURATION), 0)
            before = configuration_in(log[place - 1]) if place else self._configured[0][1]
            if before is None or before == configuration_in(entry):
                continue
            self._committed_by(server, place)
            if before.is_joint and any(
                older.term < entry.term and configuration_in(older) == before for older in log[:place]
            ):
                self.marks.see("joint change finished by a new leader")

    def _committed_by(self, server: ServerId, index: Index) -> None:
        """Record everything up to `index` as committed by the server, which may be the first to report it."""
        log = self.shadows[server].volatile
        if index > len(log):
            raise ViolationError(f"server {server} treats {index} as committed, which is not in its log")
        for place in range(len(self.committed) + 1, index + 1):
            self._commit(server, place, log[place - 1])

    def _check_sent_commit(self, server: ServerId, commit: Index) -> None:
        shadow = self.shadows[server]
        if commit < shadow.sent_commit:
            raise ViolationError(f"server {server} sends the commit index {commit} after {shadow.sent_commit}")
        shadow.sent_commit = commit
        if commit > len(self.committed):
            self._committed_by(server, commit)

    def _voted(self, voter: ServerId, term: Term, candidate: ServerId) -> None:
        known = self._votes.setdefault((term, voter), candidate)
        if known != candidate:
            raise ViolationError(f"one vote: server {voter} votes for {known} and for {candidate} in term {term}")

    def _commit(self, server: ServerId, index: Index, entry: Entry) -> None:
        holders = {
            holder
            for holder, shadow in self.shadows.items()
            if len(shadow.durable) >= index and shadow.durable[index - 1] == entry
        }
        if not any(_is_majority(holders, deciding) for deciding in self._deciding(server, index, entry)):
            raise ViolationError(
                f"durable commitment: server {server} applies index {index}, which the disks of "
                f"{sorted(holders)} hold: no majority"
            )
        configuration = configuration_in(entry)
        if configuration is not None and configuration != self.configuration:
            self._commit_configuration(server, index, configuration)
        self.committed.append(entry)
        self._chains.append(chained(self._chains[-1], entry))
        self._committed_in.append(self.shadows[server].term)

    def _deciding(self, server: ServerId, index: Index, entry: Entry) -> Iterator[Configuration]:
        """Yield the configurations that may commit this entry: in each log with it, the effective one and later ones.

        The first server to apply an entry has usually committed it, but may have received the commit index from a
        server with a longer log.
        """
        for holder, shadow in self.shadows.items():
            log = shadow.volatile
            if len(log) >= index and log[index - 1] == entry:
                end = max(index, shadow.known) if holder == server else len(log)
                yield configuration_in(entry) or self.configuration
                yield from filter(None, map(configuration_in, log[index:end]))

    def _configuration_at(self, index: Index) -> Configuration:
        return self._configured[bisect_right(self._configured, index, key=lambda known: known[0]) - 1][1]

    def _commit_configuration(self, server: ServerId, index: Index, configuration: Configuration) -> None:
        before = self.configuration
        follows = configuration.old_voters == before.voters if configuration.is_joint else True
        if before.is_joint:
            follows = configuration == Configuration(before.voters, (), before.learners)
        elif not configuration.is_joint:
            changed = len(configuration.voter_ids ^ before.voter_ids)
            follows = changed <= 1 and self._features.joint is not JointConsensus.ALWAYS
        if not follows:
            raise ViolationError(f"one change at a time: {configuration} at {index} of {server} follows {before}")
        led = self.leaders.get(self.shadows[server].term) == server
        removed_itself = led and server not in configuration.voter_ids
        self.marks.committed(before, configuration, leads=removed_itself)
        self.configuration = configuration
        self._configured.append((index, configuration))
        if not configuration.is_joint:
            self.changes += 1
            self.marks.requested(self._settled_configuration, configuration)
            self._settled_configuration = configuration

    def _check_acknowledged(self, server: ServerId, resolve: ProposalResolved, commands: tuple[bytes, ...]) -> None:
        position = resolve.position
        log = self.shadows[server].volatile
        if position is None or position.index > len(log):
            raise ViolationError(f"server {server} acknowledges {resolve}, which is not in its log")
        # The leader's own state machine may lag (it reads old entries back), so this may be the first report of a
        # commit.
        self._committed_by(server, position.index)
        first = position.index - len(commands)
        committed_data = tuple(entry.data for entry in self.committed[first : position.index])
        if committed_data != commands or (self.committed[position.index - 1].term != position.term):
            raise ViolationError(f"server {server} acknowledges {resolve}, but the log has another entry there")
        self.acknowledged[resolve.proposal_id] = position.index
        self._highest_acknowledged = max(self._highest_acknowledged, position.index)


def _rank(log: list[Entry]) -> tuple[Term, int]:
    """Return the key for comparing logs in a vote: the term of the last entry, then the length."""
    return (log[-1].term if log else 0, len(log))


def _is_majority(holders: set[ServerId], configuration: Configuration) -> bool:
    """Return True for more than half of C_new and, if there is one, of C_old, counted independently of the core."""
    return all(
        2 * sum(server.server_id in holders for server in servers) > len(servers)
        for servers in (configuration.voters, configuration.old_voters)
        if servers
    )


def _partly_done(entries: list[Entry], persist: Persist, committed: list[Entry]) -> list[list[Entry]]:
    """Return the logs that a crash during `persist` may leave, in order; the last one is the completed log."""
    states = [entries]
    if isinstance(persist.snapshot, Install):
        states.append(committed[: persist.snapshot.snapshot.last.index])
    if persist.truncate_from is not None:
        states.append(entries[: persist.truncate_from - 1])
    for entry in persist.entries:
        states.append([*states[-1], entry])
    return states
