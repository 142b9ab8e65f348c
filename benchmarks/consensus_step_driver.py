"""One side of the step benchmark, in a separate process: it measures the core of the tree in PYTHONPATH.

    start         ─▶ calls in each step (JSON, one line)
    a line        ─▶ some rounds ─▶ microseconds of each step (JSON, one line)

    leader: propose ─▶ persisted ─▶ a reply of each follower      follower: append ─▶ persisted

Groups of three replicas work without disk and network: the driver passes each message on, so the measured tree creates
every message. Several groups do the same step together, so the clock is read once for all. The processor's caches are
then about as cold for a step as in a server with other work between its steps.

This file runs in trees whose modules differ, so it imports no module of the project by name. It searches the modules of
`consensus.core` for the classes in NAMES.
"""

import gc
import inspect
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pkgutil import walk_packages
from random import Random
from typing import Any

GROUPS = 16
SERVERS = (1, 2, 3)
ROUNDS = 4
WARM_UP_ROUNDS = 4
VALUE = b'{"benchmark":1,"padding":"%s"}' % (b"x" * 228)
SIZES = (1, 64)
"""Entries of a round."""
ELECTION_STEPS_MAX = 1_000

NAMES = (
    "Configuration",
    "DeadlineReached",
    "Extensions",
    "GARLIC_FARM",
    "HardState",
    "PeerExtensions",
    "Persist",
    "Persisted",
    "Proposed",
    "Raft",
    "Received",
    "Role",
    "Send",
    "Server",
    "describe_entries",
    "lan",
)

Step = Callable[[Any, int], list[Any]]
Work = list[tuple[Step, Any]]
Run = Callable[[str, Work, int], list[list[Any]]]


def made(message: Any, *values: object) -> Any:
    """Return a message with values for its first fields: some trees accept only keywords."""
    return message(**dict(zip(inspect.signature(message).parameters, values, strict=False)))


class Names:
    """The classes of one tree, each from the module of the core that defines it."""

    def __init__(self) -> None:
        package = import_module("consensus.core")
        modules = [import_module(each.name) for each in walk_packages(package.__path__, f"{package.__name__}.")]
        for name in NAMES:
            found = [getattr(module, name) for module in modules if name in vars(module)]
            if not found:
                raise SystemExit(f"consensus.core of this tree lacks {name}: compare with a later commit")
            setattr(self, name, found[0])

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"NAMES lacks {name}")


class Group:
    """Three replicas; the first leads."""

    def __init__(self, names: Names, seed: int) -> None:
        self._names = names
        self.now = 0
        servers = tuple(names.Server(each, f"tcp://127.0.0.1:{each}") for each in SERVERS)
        self.replicas = {
            server.server_id: names.Raft(
                server.server_id,
                names.Configuration(servers),
                names.HardState(0, None),
                names.describe_entries(()),
                names.lan(),
                names.GARLIC_FARM,
                Random(seed),
                0,
            )
            for server in servers
        }
        extensions = names.Extensions(pre_vote=True, transfer=True, configurations=True)
        for replica in self.replicas.values():
            for peer in self.replicas:
                replica.step(names.PeerExtensions(peer, extensions), 0)
        self.leader = self.replicas[1]
        self.now = self.leader.deadline
        self.settle(1, self.leader.step(names.DeadlineReached(), self.now))
        if self.leader.describe().role is not names.Role.LEADER:
            raise SystemExit("the first replica did not become leader")

    def settle(self, server: int, effects: list[Any]) -> None:
        """Execute effects, and the effects of the resulting steps, until all are done."""
        waiting = [(server, effect) for effect in effects]
        for _ in range(ELECTION_STEPS_MAX):
            if not waiting:
                return
            acting, effect = waiting.pop(0)
            if isinstance(effect, self._names.Persist):
                found, event = acting, made(self._names.Persisted, effect.number)
            elif isinstance(effect, self._names.Send):
                found, event = effect.recipient, made(self._names.Received, acting, effect.message)
            else:
                continue
            waiting += [(found, each) for each in self.replicas[found].step(event, self.now)]
        raise SystemExit("the replicas did not settle")

    def written(self, effects: list[Any]) -> Any:
        """Return the event that reports the last of these writes as durable."""
        return made(
            self._names.Persisted, max(each.number for each in effects if isinstance(each, self._names.Persist))
        )

    def sent(self, sender: int, effects: list[Any]) -> dict[int, Any]:
        """Return, for each recipient, the event of the received message."""
        return {
            each.recipient: made(self._names.Received, sender, each.message)
            for each in effects
            if isinstance(each, self._names.Send)
        }


class Rounds:
    """Rounds of replication in all groups together, with the processor time of each kind of step."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self.groups = [Group(names, seed) for seed in range(GROUPS)]
        self.used_ns = Counter[str]()
        self.steps = Counter[str]()
        self._proposal = 0

    def one(self, entries: int, run: Run) -> None:
        """Run one round: propose the entries together, write them, replicate them to both followers, wait for both."""
        self._proposal += 1
        of = f"{entries} {'entry' if entries == 1 else 'entries'}"
        groups, leaders = self.groups, [group.leader for group in self.groups]
        now = groups[0].now = max(group.now for group in groups) + 1
        proposed = [made(self._names.Proposed, self._proposal, (VALUE,) * entries) for _ in groups]
        found = run(f"leader: proposal of {of}", _work(leaders, proposed), now)
        written = [group.written(effects) for group, effects in zip(groups, found, strict=True)]
        sent = [group.sent(1, effects) for group, effects in zip(groups, found, strict=True)]
        run(f"leader: persisted, {of}", _work(leaders, written), now)
        for follower in SERVERS[1:]:
            followers = [group.replicas[follower] for group in groups]
            appended = run(f"follower: AppendEntries of {of}", _work(followers, [each[follower] for each in sent]), now)
            written = [group.written(effects) for group, effects in zip(groups, appended, strict=True)]
            finished = run(f"follower: persisted, {of}", _work(followers, written), now)
            replies = [
                group.sent(follower, early + late)[1]
                for group, early, late in zip(groups, appended, finished, strict=True)
            ]
            run(f"leader: AppendReply, {of}", _work(leaders, replies), now)

    def timed(self, kind: str, work: Work, now: int) -> list[list[Any]]:
        """Run the steps and add their processor time."""
        began_ns = time.process_time_ns()
        found = [step(event, now) for step, event in work]
        self.used_ns[kind] += time.process_time_ns() - began_ns
        self.steps[kind] += len(work)
        return found


def _work(replicas: list[Any], events: list[Any]) -> Work:
    return [(replica.step, event) for replica, event in zip(replicas, events, strict=True)]


def untimed(_kind: str, work: Work, now: int) -> list[list[Any]]:
    """Run the steps."""
    return [step(event, now) for step, event in work]


def count_calls(calls: Counter[str], steps: Counter[str]) -> Run:
    """Return a function that runs steps and counts the calls of Python functions in them."""

    def run(kind: str, work: Work, now: int) -> list[list[Any]]:
        def profile(_frame: object, event: str, _argument: object) -> None:
            calls[kind] += event == "call"

        found = []
        for step, event in work:
            sys.setprofile(profile)
            try:
                found.append(step(event, now))
            finally:
                sys.setprofile(None)
        steps[kind] += len(work)
        return found

    return run


def calls_of_steps(rounds: Rounds) -> dict[str, float]:
    """Return the number of calls of Python functions in each kind of step, including `step` itself."""
    calls, steps = Counter[str](), Counter[str]()
    for entries in SIZES:
        rounds.one(entries, count_calls(calls, steps))
    return {kind: calls[kind] / count for kind, count in steps.items()}


def time_of_steps(rounds: Rounds) -> dict[str, float]:
    """Return the microseconds of processor time of each kind of step."""
    rounds.used_ns.clear()
    rounds.steps.clear()
    for _ in range(ROUNDS):
        for entries in SIZES:
            rounds.one(entries, rounds.timed)
    return {kind: used_ns / rounds.steps[kind] / 1_000 for kind, used_ns in rounds.used_ns.items()}


def main() -> None:
    """Print the calls of each step, then their time for each line of the input."""
    rounds = Rounds(Names())
    for _ in range(WARM_UP_ROUNDS):
        for entries in SIZES:
            rounds.one(entries, untimed)
    print(json.dumps(calls_of_steps(rounds)), flush=True)
    # Garbage is collected between the turns, outside the measured time.
    gc.disable()
    for _ in sys.stdin:
        gc.collect()
        print(json.dumps(time_of_steps(rounds)), flush=True)


if __name__ == "__main__":
    main()
