"""The bounded worlds: first state, actions and bounds."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tests.spec.model.actions import Actions, crash_outcomes
from tests.spec.model.state import LEADER, Configuration, Node, State, configuration_of, initial_node


class Action(NamedTuple):
    """A named transition of one server."""

    name: str
    server: int
    detail: object = None

    def __str__(self) -> str:
        detail = "" if self.detail is None else f" {self.detail}"
        return f"{self.name} of server {self.server}{detail}"


@dataclass(frozen=True, slots=True)
class World:
    """One bounded world. Servers and configurations are numbers and bit masks: 0b111 are servers 0, 1 and 2."""

    name: str
    initial: tuple[Configuration, ...]
    terms: int
    entries: int
    crashes: int = 0
    changes: int = 0
    targets: tuple[Configuration, ...] = ()
    """The configurations that a leader may change to."""
    fetches: bool = False
    """True for KIP-595: followers fetch; otherwise leaders append."""
    learns: bool = False
    """True if followers learn the commit index; without it, only leaders commit, which checks the same claims."""
    snapshots: bool = False
    late_votes: bool = False
    """True if term and vote may wait for the disk as well; without it, only entries wait."""
    opening: tuple[tuple[str, int], ...] = ()
    """Names and servers of the actions that lead to the first state explored."""

    def start(self, actions: Actions) -> State:
        """Return the first explored state: the state after the opening, if any; otherwise no server has run."""
        state = State(tuple(map(initial_node, self.initial)), (), self.crashes, self.changes)
        for name, server in self.opening:
            state = next(
                after
                for action, after in self.successors(actions, state)
                if (action.name, action.server) == (name, server)
            )
        return state

    def successors(self, actions: Actions, state: State) -> Iterator[tuple[Action, State]]:
        """Yield every possible next state."""
        for server, node in enumerate(state.nodes):
            for action, successor in self._of(actions, state, server, node):
                if successor is not None and successor != state:
                    yield action, successor

    def _of(self, actions: Actions, state: State, server: int, node: Node) -> Iterator[tuple[Action, State | None]]:
        late = partial(_votes_synced, actions) if node.unsynced and not self.late_votes else _unchanged
        if state.crashes:
            yield from self._crashes(actions, state, server, node)
        if node.term < self.terms:
            yield Action("Timeout", server), late(actions.timeout(state, server), server)
        for term in range(node.term + 1, len(state.records) + 1):
            yield Action("UpdateTerm", server, term), late(actions.update_term(state, server, term), server)
        for candidate in range(len(state.nodes)):
            yield Action("Vote", server, candidate), late(actions.vote(state, server, candidate), server)
        if not 0 < node.term <= len(state.records):
            return
        yield Action("BecomeLeader", server), actions.become_leader(state, server)
        yield from self._commits(actions, state, server, node)
        if not node.unsynced:
            yield from self._changes_of_log(actions, state, server)
        if self._may_wait(state, node):
            waiting = state if node.unsynced else actions.unsync(state, server)
            for action, changed in self._changes_of_log(actions, waiting, server):
                if changed is not None and changed.nodes[server].log != node.log:
                    yield action._replace(name=f"{action.name}, not synced,"), late(changed, server)

    def _commits(
        self, actions: Actions, state: State, server: int, node: Node
    ) -> Iterator[tuple[Action, State | None]]:
        record = state.records[node.term - 1]
        if node.role == LEADER:
            for index in range(record.commit + 1, len(node.log) + 1):
                yield Action("AdvanceCommit", server, index), actions.advance_commit(state, server, index)
        elif self.learns:
            for index in range(node.commit + 1, record.commit + 1):
                yield Action("LearnCommit", server, index), actions.learn_commit(state, server, index)

    def _may_wait(self, state: State, node: Node) -> bool:
        """Return True if a write of this server may wait.

        Without a later crash, a waiting write only delays messages, and messages may be late with a fast disk, too.
        So at most as many servers have waiting writes as crashes remain.
        """
        return bool(node.unsynced) or sum(bool(other.unsynced) for other in state.nodes) < state.crashes

    def _changes_of_log(self, actions: Actions, state: State, server: int) -> Iterator[tuple[Action, State | None]]:
        node = state.nodes[server]
        record = state.records[node.term - 1]
        if node.role == LEADER:
            if len(node.log) < self.entries:
                yield from self._appends_of_leader(actions, state, server, node)
        elif record.leaders and self.fetches:
            yield Action("FetchEntry", server), actions.fetch_entry(state, server)
            for index in range(len(node.log)):
                yield Action("FetchTruncate", server, index), actions.fetch_truncate(state, server, index)
        elif record.leaders:
            for previous in range(min(len(node.log) + 1, len(record.log))):
                yield Action("AcceptEntry", server, previous), actions.accept_entry(state, server, previous)
        if record.leaders and self.snapshots:
            for index in range(node.commit + 1, record.commit + 1):
                yield Action("InstallSnapshot", server, index), actions.install_snapshot(state, server, index)

    def _appends_of_leader(
        self, actions: Actions, state: State, server: int, node: Node
    ) -> Iterator[tuple[Action, State | None]]:
        yield Action("AppendEntry", server), actions.append_entry(state, server)
        configuration = configuration_of(node)
        if len(configuration) == 2:
            yield Action("LeaveJoint", server), actions.change_servers(state, server, configuration[:1])
        elif state.changes:
            for target in self.targets:
                changed = actions.change_servers(state, server, target)
                if changed is not None:
                    changed = changed._replace(changes=changed.changes - 1)
                yield Action("ChangeServers", server, target), changed

    def _crashes(
        self, actions: Actions, state: State, server: int, node: Node
    ) -> Iterator[tuple[Action, State | None]]:
        """Yield the crashes of a server with a waiting write, or of any server if no write waits."""
        if not node.unsynced and any(other.unsynced for other in state.nodes):
            return
        if self.late_votes and not node.unsynced and self._may_wait(state, node):
            yield Action("Unsync", server), actions.unsync(state, server)
        for version in dict.fromkeys(crash_outcomes(node)):
            crashed = actions.crash(state, server, version)
            if crashed is not None and crashed.nodes != state.nodes:
                yield Action("Crash", server, version), crashed._replace(crashes=crashed.crashes - 1)


def _votes_synced(actions: Actions, state: State | None, server: int) -> State | None:
    """Make term and vote durable, and not the entries. No Sync follows, so the order of the writes is irrelevant."""
    if state is None:
        return None
    state = actions.sync_votes(state, server, 1)
    node = state.nodes[server]
    node = node._replace(unsynced=(node.disk,), ahead=())
    return state._replace(nodes=(*state.nodes[:server], node, *state.nodes[server + 1 :]))


def _unchanged(state: State | None, _server: int) -> State | None:
    return state


def voters(*configurations: int) -> tuple[Configuration, ...]:
    """Return the initial configurations of the servers; 0 marks a server that joins later."""
    return tuple((mask,) if mask else () for mask in configurations)


_THREE = voters(0b111, 0b111, 0b111)
_REMOVALS = voters(0b011, 0b101, 0b110)
_JOINING = voters(0b011, 0b011, 0)

SMALL = (
    World("append", _THREE, terms=2, entries=2),
    World("append, a crash", _THREE, terms=2, entries=1, crashes=1),
    World("fetch, a crash", _THREE, terms=2, entries=1, crashes=1, fetches=True),
    World("append, a removal", _THREE, terms=1, entries=3, changes=1, targets=_REMOVALS),
    World("append, followers commit", voters(0b11, 0b11), terms=2, entries=2, learns=True, snapshots=True),
)
"""The worlds of the tests: `make test` explores two of them, and `make soak` explores the others."""
FULL = (
    World("append, a crash, a removal", _THREE, terms=2, entries=3, crashes=1, changes=1, targets=_REMOVALS),
    World(
        "fetch, a crash, a removal", _THREE, terms=2, entries=3, crashes=1, changes=1, targets=_REMOVALS, fetches=True
    ),
    World(
        "append, a crash, a joint replacement",
        _JOINING,
        terms=2,
        entries=3,
        crashes=1,
        changes=1,
        targets=((0b110, 0b011), (0b101, 0b011)),
    ),
    World("append, a crash, an addition", _JOINING, terms=2, entries=3, crashes=1, changes=1, targets=voters(0b111)),
    World("append, followers commit, a crash", _THREE, terms=2, entries=2, crashes=1, learns=True, snapshots=True),
    World("fetch, followers commit, a crash", _THREE, terms=2, entries=2, crashes=1, learns=True, fetches=True),
    World("append, late terms and votes", _THREE, terms=2, entries=1, crashes=1, late_votes=True),
    World("append, four terms", _THREE, terms=4, entries=1),
)
"""The worlds of `make model`."""
