"""Trace validation: each step of the production core is a step of the model, or a short sequence of its steps.

`TraceChecker` extends the judge of a simulated history. It keeps a state of the model (`tests.spec.model`) and maps the
changes of each step to the model's actions. It performs them under the model's rules, and compares the result with the
server. The order of the actions in one step is fixed:

    AdvanceCommit (a leader)  UpdateTerm  Timeout  Vote  BecomeLeader  entries  LearnCommit (a follower)  Resign

Entries are AppendEntry or ChangeServers at a leader, AcceptEntry, FetchEntry, FetchTruncate or InstallSnapshot at a
follower. A Persist is Unsync, its completion Sync or SyncVotes, a restart Crash. A step that does not change term,
vote, log, role or commit index is a stutter. A pre-vote must be a stutter: it does not change a term.

The model must have sent every message that the servers send. These are votes, vote requests, parts of the leader's
log, and acknowledgments. A part of the log has a commit index up to the leader's own. An acknowledgment is for durable
entries that agree with the leader.

The mapping reads the state of the core and its Persists, so it trusts that storage returns what it stored; the judge
checks that. In the model, terms come only from its own vote requests, so no traced history has forged terms (`forger`).
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from consensus.core.effects import Effect, Install, Outcome, Persist, ProposalResolved, Role
from consensus.core.election import Candidate
from consensus.core.entry_data import configuration_in
from consensus.core.events import Event
from consensus.core.features import Features, Strategy
from consensus.core.messages import (
    AppendEntries,
    AppendReply,
    Fetch,
    FetchReply,
    InstallSnapshot,
    Message,
    RequestVote,
    VoteReply,
)
from consensus.core.model import Configuration, Entry, HardState, Index, LogId, ServerId
from consensus.core.replica import Replica
from consensus.core.roles import ServerRole
from tests.simulation.consensus.checker import Checker
from tests.simulation.consensus.history import Length, World
from tests.simulation.consensus.machine import Machine
from tests.simulation.consensus.profile import STRATEGIES, Kind
from tests.simulation.consensus.profile import Strategy as ProtocolStrategy
from tests.spec.model import state as model
from tests.spec.model.actions import Actions, crash_outcomes


class TraceError(AssertionError):
    """A production step or message that the model does not permit."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The state that a restarted server read from its disk; its first step performs the Crash of the model."""

    hard_state: HardState
    first: Index
    entries: tuple[model.Entry, ...]


@dataclass(slots=True)
class Trace:
    """The model's state of one history, and the counts of validated actions and messages."""

    ids: list[ServerId]
    state: model.State
    writes: dict[ServerId, deque[int]]
    """Numbers of the Persists under way that change term, vote or log."""
    recovered: dict[ServerId, Recovered] = field(default_factory=dict)
    actions: Counter[str] = field(default_factory=Counter)


class TraceChecker(Checker):
    """The judge, which first compares each step with the model."""

    def __init__(self, servers: list[ServerId], configuration: Configuration, features: Features) -> None:
        super().__init__(servers, configuration, features)
        self._actions = Actions()
        self._fetches = features.replication is Strategy.FETCH
        nodes = tuple(model.initial_node(()) for _ in servers)
        self.trace = Trace(servers, model.State(nodes, ()), {server: deque() for server in servers})
        self.machines: Mapping[ServerId, Machine] = {}

    def stepped(self, server: ServerId, event: Event, effects: list[Effect]) -> None:
        """Map the step to the model."""
        self._restart(server)
        before = self._node(server)
        try:
            self._map(server, effects)
        except TraceError as error:
            raise TraceError(f"server {server}, {event}: {error}; the model had {before}") from error
        super().stepped(server, event, effects)

    def persisted(self, server: ServerId, number: int) -> None:
        """Make the writes up to this number durable."""
        writes = self.trace.writes[server]
        while writes and writes[0] <= number:
            writes.popleft()
            self._perform("Sync", self._actions.sync(self.trace.state, self._place(server)))
        super().persisted(server, number)

    def hard_state_persisted(self, server: ServerId, number: int) -> None:
        """Make term and vote of the writes up to this number durable."""
        count = sum(written <= number for written in self.trace.writes[server])
        if count:
            self._perform("SyncVotes", self._actions.sync_votes(self.trace.state, self._place(server), count))
        super().hard_state_persisted(server, number)

    def recovered(self, server: ServerId, hard_state: HardState, first: Index, entries: list[Entry]) -> None:
        """Record the recovered state until the first step."""
        self.trace.recovered[server] = Recovered(hard_state, first, tuple(map(self._entry, entries)))
        super().recovered(server, hard_state, first, entries)

    def sent(self, server: ServerId, message: Message) -> None:
        """Check a request that leaves the server, or a reply with entries."""
        self._check_message(server, None, message)
        super().sent(server, message)

    def reply_sent(self, server: ServerId, recipient: ServerId, message: Message) -> None:
        """Check a vote or an acknowledgment that leaves the server."""
        self._check_message(server, recipient, message)
        super().reply_sent(server, recipient, message)

    def _restart(self, server: ServerId) -> None:
        """Perform the Crash before the first step of a run."""
        found = self.trace.recovered.pop(server, None)
        if found is None:
            return
        node, place, log = self._node(server), self._place(server), self._replica(server).log
        vote = self._vote(found.hard_state)
        version = next(
            (
                each
                for each in crash_outcomes(node)
                if (each.term, each.vote) == (found.hard_state.term, vote)
                and len(each.log) >= found.first - 1
                and each.log[found.first - 1 :] == found.entries
            ),
            None,
        )
        if version is None:
            raise TraceError(f"server {server} recovered {found}, which no crash of {node} leaves")
        self.trace.writes[server].clear()
        covered = 0 if log.snapshot is None else log.snapshot.last.index
        self._perform("Crash", self._actions.crash(self.trace.state, place, version, covered))
        if not version.log and log.snapshot is None:
            self._set(place, self._node(server)._replace(initial=self._masks(log.configuration)))

    def _map(self, server: ServerId, effects: list[Effect]) -> None:
        persist = effects[0] if effects and isinstance(effects[0], Persist) else None
        if any(isinstance(effect, Persist) for effect in effects[1:]):
            raise TraceError("a Persist is not the only one of its step, or not its first effect")
        place, actions, trace = self._place(server), self._actions, self.trace
        replica, role = self._replica(server), self._role(server)
        if persist is not None and _changes_version(persist):
            trace.state = actions.unsync(trace.state, place)
            trace.writes[server].append(persist.number)
        commit, node = replica.applier.commit, self._node(server)
        if node.role == model.LEADER and node.term == replica.term and commit > node.commit:
            self._perform("AdvanceCommit", actions.advance_commit(trace.state, place, commit))
        self._map_term_and_vote(place, replica.hard_state)
        if role is Role.LEADER and self._node(server).role == model.CANDIDATE:
            self._perform("BecomeLeader", actions.become_leader(trace.state, place))
        if persist is not None:
            self._map_log(place, persist, leads=role is Role.LEADER)
        if commit > self._node(server).commit:
            self._perform("LearnCommit", actions.learn_commit(trace.state, place, commit))
        if role is Role.FOLLOWER and self._node(server).role != model.FOLLOWER:
            self._perform("Resign", actions.resign(trace.state, place))
        self._compare(server)
        for effect in effects:
            if isinstance(effect, ProposalResolved) and effect.outcome is Outcome.COMMITTED:
                self._check_outcome(server, effect.position)

    def _map_term_and_vote(self, place: int, hard_state: HardState) -> None:
        actions, trace, vote = self._actions, self.trace, self._vote(hard_state)
        node = trace.state.nodes[place]
        if hard_state.term > node.term:
            campaigns = vote == place
            seen = hard_state.term - campaigns
            if seen > node.term:
                self._perform("UpdateTerm", actions.update_term(trace.state, place, seen))
            if campaigns:
                self._perform("Timeout", actions.timeout(trace.state, place))
        if vote not in (model.NO_SERVER, trace.state.nodes[place].vote):
            self._perform("Vote", actions.vote(trace.state, place, vote))

    def _map_log(self, place: int, persist: Persist, *, leads: bool) -> None:
        actions, trace = self._actions, self.trace
        if isinstance(persist.snapshot, Install):
            last = persist.snapshot.snapshot.last.index
            self._perform("InstallSnapshot", actions.install_snapshot(trace.state, place, last))
        if persist.truncate_from is not None and self._fetches:
            self._perform("FetchTruncate", actions.fetch_truncate(trace.state, place, persist.truncate_from - 1))
        for index, entry in enumerate(persist.entries, start=persist.first):
            mapped = self._entry(entry)
            if not leads:
                follows = actions.fetch_entry(trace.state, place) if self._fetches else None
                after = follows if self._fetches else actions.accept_entry(trace.state, place, index - 1)
                self._perform("FetchEntry" if self._fetches else "AcceptEntry", after)
            elif mapped.configuration in ((), model.configuration_of(trace.state.nodes[place])):
                self._perform("AppendEntry", actions.append_entry(trace.state, place, mapped.configuration))
            else:
                self._perform("ChangeServers", actions.change_servers(trace.state, place, mapped.configuration))
            if model.term_at(trace.state.nodes[place].log, index) is None or (
                trace.state.nodes[place].log[index - 1] != mapped
            ):
                raise TraceError(f"the model has another entry at {index} than {mapped}")

    def _compare(self, server: ServerId) -> None:
        node, replica = self._node(server), self._replica(server)
        last = model.end_of(node.log)
        production = (
            replica.term,
            self._vote(replica.hard_state),
            self._role(server).value,
            replica.applier.commit,
            (replica.log.last.term, replica.log.last.index),
            self._masks(replica.log.configuration),
        )
        expected = (
            node.term,
            node.vote,
            node.role,
            node.commit,
            (last.term, last.length),
            model.configuration_of(node),
        )
        if production != expected:
            raise TraceError(f"the server is {production}, the model {expected}")

    def _check_outcome(self, server: ServerId, position: LogId | None) -> None:
        node = self._node(server)
        if position is None or position.index > node.commit or model.term_at(node.log, position.index) != position.term:
            raise TraceError(f"acknowledges {position}, and the model has committed {node.commit}")

    def _check_message(self, server: ServerId, recipient: ServerId | None, message: Message) -> None:
        if not self._may_send(self._place(server), recipient, message):
            raise TraceError(f"server {server} sends {message} to {recipient}, which the model does not send")
        self.trace.actions[type(message).__name__] += 1

    def _may_send(self, place: int, recipient: ServerId | None, message: Message) -> bool:
        records, term = self.trace.state.records, getattr(message, "term", 0)
        is_known = 0 < term <= len(records)
        record = records[term - 1] if is_known else model.empty_record(len(self.trace.ids))
        permitted = True
        match message:
            case RequestVote(pre_vote=False, last=last):
                permitted = record.requests[place] == (last.term, last.index)
            case VoteReply(granted=True, pre_vote=False) if recipient is not None:
                permitted = bool(record.votes[place] >> self._place(recipient) & 1)
            case AppendEntries(previous=previous, entries=entries, commit=commit):
                permitted = self._is_part(record, place, previous, entries) and commit <= record.commit
            case InstallSnapshot(last=last):
                permitted = self._is_part(record, place, last, ()) and last.index <= record.commit
            case AppendReply(success=True, next_index=next_index):
                permitted = next_index - 1 <= record.acknowledged[place]
            case Fetch(position=position):
                disk = self.trace.state.nodes[place].disk
                is_durable = model.term_at(disk.log, position.index) == position.term
                permitted = disk.term > term or (disk.term == term and is_durable)
            case FetchReply(error=None, commit=commit):
                permitted = bool(record.leaders >> place & 1) and commit <= record.commit
            case _:
                pass
        return permitted

    def _is_part(self, record: model.TermRecord, place: int, previous: LogId, entries: tuple[Entry, ...]) -> bool:
        """Return True if the entries after `previous` are in this leader's log."""
        part = record.log[previous.index : previous.index + len(entries)]
        return (
            bool(record.leaders >> place & 1)
            and model.term_at(record.log, previous.index) == previous.term
            and part == tuple(map(self._entry, entries))
        )

    def _perform(self, name: str, after: model.State | None) -> None:
        if after is None:
            raise TraceError(f"the model does not permit {name}")
        self.trace.actions[name] += 1
        self.trace.state = after

    def _set(self, place: int, node: model.Node) -> None:
        nodes = self.trace.state.nodes
        self.trace.state = self.trace.state._replace(nodes=(*nodes[:place], node, *nodes[place + 1 :]))

    def _node(self, server: ServerId) -> model.Node:
        return self.trace.state.nodes[self._place(server)]

    def _place(self, server: ServerId) -> int:
        return self.trace.ids.index(server)

    def _vote(self, hard_state: HardState) -> int:
        return model.NO_SERVER if hard_state.voted_for is None else self._place(hard_state.voted_for)

    def _masks(self, configuration: Configuration) -> model.Configuration:
        """Return the sets of voters; learners and addresses are outside the model."""
        return tuple(sum(1 << self._place(voter) for voter in voters) for voters in configuration.majorities if voters)

    def _entry(self, entry: Entry) -> model.Entry:
        configuration = configuration_in(entry)
        return model.Entry(entry.term, () if configuration is None else self._masks(configuration))

    def _replica(self, server: ServerId) -> Replica:
        run = self.machines[server].run
        assert run is not None
        return run.core._replica

    def _role(self, server: ServerId) -> Role:
        """Return the role; a server in pre-vote is a follower."""
        run = self.machines[server].run
        assert run is not None
        role: ServerRole = run.core._role
        if isinstance(role.current, Candidate):
            return Role.FOLLOWER if role.current.pre_vote else Role.CANDIDATE
        return role.name


def _changes_version(persist: Persist) -> bool:
    """Return True if a Persist changes term, vote or log, and not only stored snapshots."""
    changes_log = persist.truncate_from is not None or bool(persist.entries)
    return persist.hard_state is not None or changes_log or isinstance(persist.snapshot, Install)


def run_traced(
    seed: int, length: Length, strategy: ProtocolStrategy = STRATEGIES["append"], kind: Kind | None = None
) -> TraceChecker:
    """Run one history, and validate it; return the checker with its trace."""
    world = World(seed, strategy, kind=kind, make_checker=TraceChecker)
    checker = world.checker
    assert isinstance(checker, TraceChecker)
    checker.machines = world.machines
    world.run(length)
    return checker
