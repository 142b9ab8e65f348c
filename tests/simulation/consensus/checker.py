"""The judge: sees what every server does, knows the whole world, and says when something can not be.

    election safety        at most one leader in a term; a vote is given once in a term, also across restarts
    leader append-only     a leader truncates nothing
    log matching           (index, term) names one entry and, by induction over the previous term, one prefix
    leader completeness    a new leader holds everything that was committed before
    state machine safety   everybody applies the same entry at the same index, in order, each once in a life
    durable commitment     what a leader commits lies on the disks of a majority of each set of voters that its
                           configuration has; what is acknowledged stays
    one change at a time   a configuration follows the commitment of the one before; C_old,new only C_old, C_new only it
    answers                every request is answered once; a proposal is refused only if it never can be committed

Its picture of a log is built from `Persist` effects alone, so a replica cannot talk it out of anything.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from consensus.core.effects import (
    Apply,
    ChangeOutcome,
    ChangeResolved,
    Effect,
    Install,
    Outcome,
    Persist,
    ReadReady,
    ReadRefused,
    Resolve,
    Role,
    RoleChanged,
    TransferEnded,
    TransferOutcome,
)
from consensus.core.events import Event, Received
from consensus.core.messages import Message, RequestVote, VoteReply
from consensus.core.position import Ballot, Command, Configuration, Entry, Index, ServerId, SnapshotDescription, Term
from tests.simulation.consensus.accounts import AccountError, Accounts


class ViolationError(AssertionError):
    """An invariant was broken: a bug in the core (or a mutant that was caught)."""


@dataclass(slots=True)
class Shadow:
    """The judge's own picture of one server."""

    volatile: list[Entry] = field(default_factory=list)
    durable: list[Entry] = field(default_factory=list)
    ballot: Ballot = field(default_factory=lambda: Ballot(0))
    writing: list[Persist] = field(default_factory=list)
    applied: Index = 0
    term: Term = 0
    leads: Term | None = None
    known: Index = 0
    """Where its log ended before the step that is under way: the commitments of that step rest on no more."""


def apply_persist(entries: list[Entry], persist: Persist, committed: list[Entry]) -> None:
    """Change a list of entries as the effect says; a snapshot that is installed stands for what is `committed`."""
    if isinstance(persist.snapshot, Install):
        entries[:] = committed[: persist.snapshot.snapshot.last.index]
    if persist.truncate_from is not None:
        del entries[persist.truncate_from - 1 :]
    if persist.entries:
        if persist.first != len(entries) + 1:
            raise ViolationError(f"Persist leaves a gap: first {persist.first} after {len(entries)} entries")
        entries.extend(persist.entries)


class Checker:
    """All that the judge remembers of one history."""

    def __init__(self, servers: list[ServerId], configuration: Configuration) -> None:
        self.shadows = {server: Shadow() for server in servers}
        self._accounts = Accounts()
        self.committed: list[Entry] = []
        self._committed_in: list[Term] = []
        self.acknowledged: dict[int, Index] = {}
        self.refused: set[bytes] = set()
        self.leaders: dict[Term, ServerId] = {}
        self._initial = configuration
        self.configuration = configuration
        """The latest that is committed."""
        self.changes = 0
        self._requested: dict[int, Configuration] = {}
        self.reads = 0
        self.transfers = 0
        self._read_floors: dict[int, Index] = {}
        self._votes: dict[tuple[Term, ServerId], ServerId] = {}
        self._entries: dict[tuple[Index, Term], tuple[Entry, Term]] = {}
        self._proposals: dict[int, tuple[bytes, ...]] = {}

    def proposed(self, proposal_id: int, commands: tuple[bytes, ...]) -> None:
        """A client submits commands, all different from any other."""
        self._proposals[proposal_id] = commands

    def stepped(self, server: ServerId, event: Event, effects: list[Effect]) -> None:
        """A core took a step; its effects are not performed yet."""
        # The step as a whole is one moment: a leader that is deposed by an append may truncate in the same step.
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
        """The disk of `server` completed the Persists up to `number`."""
        shadow = self.shadows[server]
        while shadow.writing and shadow.writing[0].number <= number:
            self._now_durable(shadow, shadow.writing.pop(0))

    def sent(self, server: ServerId, message: Message) -> None:
        """A message leaves the machine."""
        match message:
            case RequestVote(pre_vote=False, term=term):
                self._voted(server, term, server)
            case _:
                pass

    def reply_sent(self, server: ServerId, recipient: ServerId, message: Message) -> None:
        """A reply leaves the machine: a vote is given."""
        match message:
            case VoteReply(granted=True, pre_vote=False, term=term):
                self._voted(server, term, recipient)
            case _:
                pass

    def applied(self, server: ServerId, effect: Apply) -> None:
        """A state machine takes committed entries."""
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

    def resolved(self, server: ServerId, resolve: Resolve) -> None:
        """A client is told how its proposal ended."""
        commands = self._proposals.pop(resolve.proposal_id, None)
        if commands is None:
            raise ViolationError(f"server {server} answers proposal {resolve.proposal_id} twice")
        match resolve.outcome:
            case Outcome.COMMITTED:
                self._check_acknowledged(server, resolve, commands)
            case Outcome.NOT_LEADER | Outcome.BUSY:
                self.refused.update(commands)
            case Outcome.UNKNOWN:
                pass

    def read_asked(self, read_id: int) -> None:
        """A client asks for a linearizable read: it must see whatever is acknowledged by now."""
        self._read_floors[read_id] = max(self.acknowledged.values(), default=0)

    def question_answered(self, server: ServerId, answer: ReadReady | ReadRefused | TransferEnded) -> None:
        """The read may be served from `index` on, or is refused; or a transfer has ended."""
        if isinstance(answer, TransferEnded):
            self.transfers += answer.outcome is TransferOutcome.DONE
            return
        floor = self._read_floors.pop(answer.read_id, None)
        if floor is None:
            raise ViolationError(f"server {server} answers read {answer.read_id} twice")
        if isinstance(answer, ReadReady):
            self.reads += 1
            if answer.index < floor:
                text = f"index {answer.index}, and index {floor} was acknowledged before it began"
                raise ViolationError(f"linearizability: server {server} answers read {answer.read_id} at {text}")

    def change_requested(self, change_id: int, target: Configuration) -> None:
        """Somebody asks for a configuration."""
        self._requested[change_id] = target

    def change_resolved(self, server: ServerId, resolved: ChangeResolved) -> None:
        """Somebody is told how the change ended."""
        target = self._requested.pop(resolved.change_id, None)
        if target is None:
            raise ViolationError(f"server {server} answers change {resolved.change_id} twice")
        position = resolved.position
        if resolved.outcome is ChangeOutcome.COMMITTED and position is not None:
            log = self.shadows[server].volatile
            for index in range(len(self.committed) + 1, position.index + 1):
                self._commit(server, index, log[index - 1])
            if self._configuration_at(self.committed, position.index) != target:
                raise ViolationError(f"server {server} says {resolved}, but the log has something else there")

    def crashed(self, server: ServerId) -> None:
        """Everything volatile is gone; how much of the unfinished writes survived shows at recovery."""
        shadow = self.shadows[server]
        shadow.applied = 0
        shadow.leads = None
        self._accounts.crashed(server)

    def restored(self, server: ServerId, snapshot: SnapshotDescription, entries: list[Entry]) -> None:
        """A state machine begins anew from a snapshot: it must be what the log would have made of it."""
        last = snapshot.last
        if entries != self.committed[: last.index] or not entries or entries[-1].term != last.term:
            raise ViolationError(f"server {server} restores a state that is not that of the log up to {last}")
        if snapshot.configuration != self._configuration_at(self.committed, last.index):
            raise ViolationError(f"server {server} restores a snapshot with another configuration than that of {last}")
        self.shadows[server].applied = last.index

    def recovered(self, server: ServerId, ballot: Ballot, first: Index, entries: list[Entry]) -> None:
        """A server starts with what its disk gave back: all that was durable, and maybe some unfinished writes.

        The log begins at `first`: a snapshot, which is checked when it is restored, covers what comes before.
        """
        shadow = self.shadows[server]
        ballots = [shadow.ballot, *(persist.ballot for persist in shadow.writing if persist.ballot is not None)]
        logs = [list(shadow.durable)]
        for persist in shadow.writing:
            logs.extend(_partly_done(logs[-1], persist, self.committed))
        found = next((log for log in logs if log[first - 1 :] == entries and len(log) >= first - 1), None)
        if ballot not in ballots or found is None:
            raise ViolationError(
                f"server {server} recovered {ballot} and {len(entries)} entries, which no crash can have left"
            )
        shadow.writing.clear()
        shadow.term = ballot.term
        shadow.ballot, shadow.durable, shadow.volatile = ballot, list(found), list(found)

    def check_settled(self) -> None:
        """At the end: what was acknowledged is committed, what was refused is not."""
        contents = {entry.content.data for entry in self.committed if isinstance(entry.content, Command)}
        wrong = contents & self.refused
        if wrong:
            raise ViolationError(f"refused and yet committed: {sorted(wrong)[:3]}")

    def _staged(self, server: ServerId, persist: Persist) -> None:
        shadow = self.shadows[server]
        shadow.writing.append(persist)
        if persist.ballot is not None:
            shadow.term = persist.ballot.term
        if isinstance(persist.snapshot, Install) and (
            shadow.leads is not None or persist.snapshot.snapshot.last.index <= shadow.applied
        ):
            raise ViolationError(f"server {server} discards its log for a snapshot that it has no need of")
        if persist.truncate_from is not None:
            if shadow.leads is not None:
                raise ViolationError(f"leader append-only: {server} truncates from {persist.truncate_from}")
            if persist.truncate_from <= shadow.applied:
                raise ViolationError(f"server {server} truncates {persist.truncate_from}, which it has applied")
        apply_persist(shadow.volatile, persist, self.committed)
        for index, entry in enumerate(persist.entries, start=persist.first):
            previous = shadow.volatile[index - 2].term if index > 1 else 0
            known = self._entries.setdefault((index, entry.term), (entry, previous))
            if known != (entry, previous):
                raise ViolationError(f"log matching: two entries at index {index} in term {entry.term}")

    def _now_durable(self, shadow: Shadow, persist: Persist) -> None:
        apply_persist(shadow.durable, persist, self.committed)
        if persist.ballot is not None:
            shadow.ballot = persist.ballot

    def _elected(self, server: ServerId, term: Term) -> None:
        known = self.leaders.setdefault(term, server)
        if known != server:
            raise ViolationError(f"election safety: {known} and {server} both lead term {term}")
        # What a later term has committed is not this leader's concern: its votes may have travelled for long.
        count = len(self.committed)
        while count and self._committed_in[count - 1] >= term:
            count -= 1
        log = self.shadows[server].volatile
        if len(log) < count or (count and log[count - 1] != self.committed[count - 1]):
            raise ViolationError(f"leader completeness: {server} leads term {term} without all committed entries")

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
        if isinstance(entry.content, Configuration) and entry.content != self.configuration:
            self._commit_configuration(server, index, entry.content)
        self.committed.append(entry)
        self._committed_in.append(self.shadows[server].term)

    def _deciding(self, server: ServerId, index: Index, entry: Entry) -> Iterator[Configuration]:
        """The configurations by which this entry may be committed: the ones in effect at it and later, in any log.

        Who applies first has usually committed, but may have heard of it from one whose log goes on further.
        """
        for holder, shadow in self.shadows.items():
            log = shadow.volatile
            if len(log) >= index and log[index - 1] == entry:
                end = max(index, shadow.known) if holder == server else len(log)
                yield self._configuration_at(log, index)
                yield from (later.content for later in log[index:end] if isinstance(later.content, Configuration))

    def _configuration_at(self, log: list[Entry], index: Index) -> Configuration:
        for entry in reversed(log[:index]):
            if isinstance(entry.content, Configuration):
                return entry.content
        return self._initial

    def _commit_configuration(self, server: ServerId, index: Index, configuration: Configuration) -> None:
        before = self.configuration
        follows = configuration.old_voters == before.voters if configuration.is_joint else True
        if before.is_joint:
            follows = configuration == Configuration(before.voters, (), before.learners)
        elif not configuration.is_joint and len(configuration.voter_ids ^ before.voter_ids) > 1:
            follows = False
        if not follows:
            raise ViolationError(f"one change at a time: {configuration} at {index} of {server} follows {before}")
        self.configuration = configuration
        self.changes += not configuration.is_joint

    def _check_acknowledged(self, server: ServerId, resolve: Resolve, commands: tuple[bytes, ...]) -> None:
        position = resolve.position
        log = self.shadows[server].volatile
        if position is None or position.index > len(log):
            raise ViolationError(f"server {server} acknowledges {resolve}, which is not in its log")
        # The leader's own state machine may lag (it reads old entries back), so this may be the first word of a commit.
        for index in range(len(self.committed) + 1, position.index + 1):
            self._commit(server, index, log[index - 1])
        first = position.index - len(commands)
        held = [entry.content for entry in self.committed[first : position.index]]
        if held != [Command(data) for data in commands] or (self.committed[position.index - 1].term != position.term):
            raise ViolationError(f"server {server} acknowledges {resolve}, but the log has something else there")
        self.acknowledged[resolve.proposal_id] = position.index


def _is_majority(holders: set[ServerId], configuration: Configuration) -> bool:
    """The judge counts for itself: more than half of C_new and, if there is one, of C_old."""
    return all(
        2 * sum(server.server_id in holders for server in servers) > len(servers)
        for servers in (configuration.voters, configuration.old_voters)
        if servers
    )


def _partly_done(entries: list[Entry], persist: Persist, committed: list[Entry]) -> list[list[Entry]]:
    """The logs that a crash during `persist` may leave, in order; the last one is completion."""
    states = [entries]
    if isinstance(persist.snapshot, Install):
        states.append(committed[: persist.snapshot.snapshot.last.index])
    if persist.truncate_from is not None:
        states.append(entries[: persist.truncate_from - 1])
    for entry in persist.entries:
        states.append([*states[-1], entry])
    return states
