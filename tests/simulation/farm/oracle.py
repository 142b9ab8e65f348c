"""The truth about a farm, compared with the verdicts and the alarms of its nodes.

    Truth         the facts of each second, with the start of each: lost pairs, links, working machines
    Oracle        the claims of each node (`Claim`), judged by the facts

    verdict       healthy                 wrong while a server, its link with the node, or its router has been down for
                                          `LATE_S`. The node's own router counts after `DELAYS_S`
                  not no quorum           wrong while the node has not reached a majority for `LATE_S`
                  no quorum               wrong while a majority has worked, and all servers were linked, for `LATE_S`
                  X down, X left …        wrong while X has worked, and has been linked with the node, for `LATE_S`
                  UDP to X is blocked     wrong without a cause of the alarm "udp-blocked" (`CAUSES`) within `LATE_S`
                  X does not report       wrong while X has worked, and has been linked with all servers, for `LATE_S`
    alarm         of a kind               wrong if none of its causes existed within `LATE_S`, or longer (`_LASTING`). A
                                          kind in `OF_MACHINE` needs a cause at the machine of the node
                  of a disk or router     missing while its cause has lasted for `DELAYS_S`
    structure     with a leaf             wrong while most servers work, and its server has been down for `LATE_S`
                  the newest one          wrong while it has a leaf that all members have excluded for `STANDING_S`
    limits        of each node            wrong at any time (`limits.py`)

Verdicts have documented delays (docs/reference/verdicts.md). Only a truth that has been constant for its delay counts.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from math import inf
from typing import Final

import trio

from bridge.core.log.hashes import hash_of
from bridge.node.raft.notices import DISK_PATIENCE_MS
from bridge.node.raft.notices import QUIET_AFTER_S as REJECTED_S
from bridge.node.raft.refused_connections import QUIET_AFTER_S
from bridge.node.router.i2cp_connection import ANSWER_TIMEOUT_S
from bridge.node.tasks.publishing import RETRY_LONGEST_S
from bridge.wire.i2p.meta_lease_set import decode
from tests.simulation.farm.checks import Violation, leaves_in
from tests.simulation.farm.disk import Disk
from tests.simulation.farm.host import EPOCH_S, Host
from tests.simulation.farm.limits import Limits
from tests.simulation.farm.nemeses import OF_OPERATORS, OF_ROUTERS, Nemesis
from tests.simulation.farm.nemesis_driver import NemesisDriver
from tests.simulation.farm.observing import Observer
from tests.simulation.farm.world import World

LATE_S: Final = 60.0
STANDING_S: Final = LATE_S + RETRY_LONGEST_S
"""Longest time from an exclusion until the next structure, in a farm that works: a failed attempt may delay it."""
LOOK_S: Final = 1.0
REPORTED_S: Final = 10.0
"""The period of reports in trials. A node queries its router and writes an entry in each."""
DELAYS_S: Final[Mapping[str, float]] = {
    "disk-full": LATE_S,
    "disk-unresponsive": DISK_PATIENCE_MS / 1000 + 2 * REPORTED_S,
    "router-unreachable": ANSWER_TIMEOUT_S + 2 * REPORTED_S,
}
"""Longest delays of alarms. A fact at a node that lasts longer without its alarm is hidden from the operator.

docs/reference/alarms.md documents the 5 s of a disk. A query to a router that hangs ends after its timeout.
"""
OF_MACHINE: Final = frozenset(
    {*DELAYS_S, "router", "generation-not-stored", "keyring-not-stored", "address-gone", "content-rejected"}
)
"""Alarms about the machine of their node."""

_DOWN: Final = re.compile(r"(node-\d+) (?:down|left|not seen by gossip|does not answer the leader)")
_UDP: Final = re.compile(r"UDP to ([^,]*) is blocked")
_SILENT: Final = re.compile(r"(node-\d+) does not report")
_WITHOUT_STOP: Final = (Nemesis.CLIENT_KEY, Nemesis.LOG_TIME, Nemesis.NEW_KEYS)
"""Actions of the operator that do not stop, add, remove or move a node."""
_CUTS: Final = (
    Nemesis.ISOLATE,
    Nemesis.ONE_WAY,
    Nemesis.PART,
    Nemesis.LOSSY,
    Nemesis.SLOW_LINK,
    Nemesis.KILL,
    Nemesis.POWER_CUT,
    Nemesis.STOP,
    Nemesis.OLD_VERSION,
    Nemesis.PAUSE,
    Nemesis.SMALL_MTU,
)
"""Faults that disconnect nodes."""
_NETWORK: Final = (*_CUTS, *(each for each in OF_OPERATORS if each not in _WITHOUT_STOP))
"""Faults that disconnect nodes, and actions of the operator that do so: they stop, add, remove or move a node."""
_KEYS: Final = (Nemesis.RECOVER, Nemesis.ROTATE, Nemesis.NEW_KEYS, Nemesis.JOIN_AND_EVICT, Nemesis.HOSTILE)
_JOINS: Final = (
    Nemesis.INVITE_AND_LEAVE,
    Nemesis.JOIN_AND_LEAVE,
    Nemesis.JOIN_AND_EVICT,
    Nemesis.HOSTILE,
    Nemesis.REPLACE,
    Nemesis.RESTORE,
    Nemesis.ROT,
    Nemesis.RECOVER,
)
_LOSSES: Final = (Nemesis.LOSSY, Nemesis.SLOW_LINK, Nemesis.SMALL_MTU)
"""Faults that delay or lose some packets on each link."""
_SEEDS: Final = (
    Nemesis.REPLACE,
    Nemesis.JOIN_AND_LEAVE,
    Nemesis.INVITE_AND_LEAVE,
    Nemesis.JOIN_AND_EVICT,
    Nemesis.HOSTILE,
    Nemesis.ROT,
    Nemesis.RECOVER,
)
"""These actions may leave a node without a seed that runs: gossip then finds the members later than Raft."""
_LASTING: Final = {"farm-key-file": inf, "key-retired": inf, "content-rejected": REJECTED_S + LATE_S} | dict.fromkeys(
    ("peers-refused", "refused-by-peers", "forged-verdicts"), QUIET_AFTER_S + LATE_S
)
"""Alarms that outlast their causes: a remedy ends them (`remedies.py`), or a time without incidents."""
_WITHOUT_QUORUM: Final = frozenset({"no-quorum", "waiting", "stopping", "foreign-key"})
_ROUTERS: Final = (*OF_ROUTERS, Nemesis.POWER_CUT)
"""Faults that end sessions of a router, or delay them. A router starts later than the node of its machine."""
_CLOCKS: Final = (Nemesis.CLOCK_JUMP, Nemesis.CLOCK_DRIFT, Nemesis.FIRST_CLOCK, Nemesis.LOG_TIME)
_DISKS: Final = (Nemesis.SLOW_DISK, Nemesis.HANGING_DISK, Nemesis.FULL_DISK)
CAUSES: Final[Mapping[str, tuple[Nemesis, ...]]] = {
    "disk-full": (Nemesis.FULL_DISK,),
    "disk-unresponsive": (Nemesis.HANGING_DISK, Nemesis.SLOW_DISK),
    "generation-not-stored": (Nemesis.FULL_DISK, Nemesis.HANGING_DISK),
    "keyring-not-stored": (Nemesis.FULL_DISK, Nemesis.HANGING_DISK),
    "clock": (*_CLOCKS, *_NETWORK),
    "other-clocks": (*_CLOCKS, *_NETWORK),
    "log-time": (*_CLOCKS, *_NETWORK, *_DISKS),
    "isolated": (*_NETWORK, Nemesis.NEW_KEYS),
    "router": (*_DISKS, *_ROUTERS, *_CLOCKS),
    "router-unreachable": _ROUTERS,
    "structure-not-found": (*OF_ROUTERS, *_CUTS),
    "no-quorum": (*_NETWORK, *_DISKS),
    "servers-down": (*_NETWORK, *_DISKS),
    "reports-missing": (*_NETWORK, *_DISKS, *_CLOCKS),
    "publishing-without-quorum": (*_NETWORK, *_DISKS),
    "slow-majority": (*_CUTS, *_DISKS),
    "forged-verdicts": (*_NETWORK, Nemesis.NEW_KEYS),
    "refused-by-peers": (*_NETWORK, *_CLOCKS, Nemesis.NEW_KEYS),
    "peers-refused": (*_NETWORK, *_CLOCKS, Nemesis.NEW_KEYS),
    "farm-key-file": _KEYS,
    "key-retired": _KEYS,
    "waiting-for-approval": _JOINS,
    "not-admitted": _JOINS,
    "admission": _JOINS,
    "address-gone": (Nemesis.MOVE,),
    "content-rejected": (Nemesis.OLD_VERSION,),
    "udp-blocked": (*_LOSSES, *_SEEDS),
    "not-published": (*_NETWORK, *_CLOCKS, *_DISKS, *OF_ROUTERS),
    "no-healthy-leaf": (*_NETWORK, *_CLOCKS, *_DISKS, *OF_ROUTERS),
}
"""The faults that explain each kind of alarm. An alarm of another kind is false in these trials."""


class Truth:
    """The facts of each second. A fact is a tuple: its name, and the machines that it concerns."""

    def __init__(self, world: World, driver: NemesisDriver, observer: Observer) -> None:
        self._world = world
        self._driver = driver
        self._observer = observer
        self._since: dict[tuple[str, ...], float] = {}
        self._seen: dict[tuple[Nemesis, str | None], float] = {
            (each.nemesis, name): world.time_s for each in driver.first_clocks for name in (*each.hosts, None)
        }
        """The last time of each kind of fault, at a machine and at any."""
        self._farm: dict[str, list[str]] = {}
        """The members and their addresses. A change of either begins all facts again."""
        self._starts: dict[str, int] = {}
        """The number of starts of each member. A process may end and start again between two looks."""

    def look(self) -> None:
        """Record the present facts."""
        now_s = self._world.time_s
        farm = {name: host.addresses for name, host in self._world.members.items()}
        if farm != self._farm:
            self._farm, self._since = farm, {}
        starts = {name: host.starts for name, host in self._world.members.items()}
        begun = {name for name, number in starts.items() if number != self._starts.get(name)}
        self._starts = starts
        self._since = {
            each: now_s if begun & _processes(each) else self._since.get(each, now_s) for each in self._facts()
        }
        for fault in self._driver.active:
            for name in (*fault.hosts, None):
                self._seen[fault.nemesis, name] = now_s

    def lasts_s(self, *fact: str) -> float:
        """Return the duration of a true fact in seconds; 0 if it is false."""
        since_s = self._since.get(fact)
        return 0.0 if since_s is None else self._world.time_s - since_s

    def had(self, nemeses: tuple[Nemesis, ...], within_s: float, host: str | None = None) -> bool:
        """Return True if one of these faults was active recently, at this machine or, without a machine, at any.

        Wrong clocks count at each machine, because log time follows the clocks of a majority.
        """
        places = ((each, None if each in _CLOCKS else host) for each in nemeses)
        return any(self._world.time_s - self._seen[each] <= within_s for each in places if each in self._seen)

    def is_hidden(self, alarm: str, host: str) -> bool:
        """Return True if the cause of an alarm has lasted longer than its delay.

        A node without a quorum seldom writes, so it detects a hanging disk later.
        """
        delay_s = DELAYS_S[alarm]
        if alarm == "disk-unresponsive" and not self.has_quorum(host):
            delay_s = LATE_S
        return self.lasts_s(alarm, host) > delay_s

    def has_quorum(self, name: str) -> bool:
        """Return True if a node has long been in a majority of working servers that reach all running ones.

        A node that does not reach the leader lacks a quorum, although the other servers have a quorum. While nodes
        join, the members are not exactly the voters. A server that left or was evicted votes until the log removes it.
        """
        operator = self._driver.operator
        if operator.joining:
            return False
        running = [each for each in self._world.members if self.lasts_s("runs", each)]
        works = [each for each in running if self.lasts_s("works", each) > LATE_S]
        pairs = combinations(running, 2)
        return (
            name in running
            and len(works) > (len(self._world.members) + len(operator.leaving)) // 2
            and all(self.lasts_s("linked", *sorted(pair)) > LATE_S for pair in pairs)
        )

    def publishes(self) -> bool:
        """Return True if the farm must have published: all members worked, with links, routers and right clocks."""
        names = self._world.members
        return (
            all(self.has_quorum(each) and self.lasts_s("works", each) > STANDING_S for each in names)
            and all(self.lasts_s("linked", *sorted(pair)) > STANDING_S for pair in combinations(names, 2))
            and not self.had(_CLOCKS, inf)
            and not self.had(_ROUTERS, STANDING_S)
        )

    def lacks_router(self, name: str, target: str) -> bool:
        """Return True if a node must know that a router is down: its own, or another server's, from the log."""
        if name == target:
            return self.is_hidden("router-unreachable", name)
        return self.lasts_s("leaf-unhealthy", target) > LATE_S and self.has_quorum(name)

    def lacks_quorum(self, name: str) -> bool:
        """Return True if a node has long been cut off from so many servers that a majority is impossible."""
        lost = [each for each in self._world.members if self.lasts_s("lost", name, each) > LATE_S]
        return len(lost) >= (len(self._world.members) + 1) // 2

    def _facts(self) -> Iterator[tuple[str, ...]]:
        hosts, blocked = self._world.members.values(), self._world.network.blocked
        for host in hosts:
            if _runs(host):
                yield ("runs", host.name)
                if _has_disk(host):
                    yield ("works", host.name)
                for fault in self._faults_of(host):
                    yield (fault, host.name)
            else:
                yield ("down", host.name)
        is_bad = any(each.nemesis in _LOSSES for each in self._driver.active)
        for source in hosts:
            for target in hosts:
                pair = (source.name, target.name)
                cuts = [each in blocked for each in (pair, pair[::-1])]
                if _runs(source) and source is not target and (not _runs(target) or all(cuts)):
                    yield ("lost", *pair)
                if source.name < target.name and _runs(source) and _runs(target) and not any(cuts) and not is_bad:
                    yield ("linked", *pair)

    def _faults_of(self, host: Host) -> Iterator[str]:
        """Yield the alarms that a node must raise for the present faults of its running machine."""
        if _disk_of(host).full:
            yield "disk-full"
        if _disk_of(host).hang:
            yield "disk-unresponsive"
        router = self._world.routers.get(host.name)
        if router is not None and _has_disk(host) and (router.unresponsive or not router.up):
            yield "router-unreachable"
            if host.name not in self._observer.excluded_owners():
                yield "leaf-unhealthy"


class Oracle:
    """Judgment of the verdicts and alarms, each second."""

    def __init__(self, world: World, observer: Observer, driver: NemesisDriver) -> None:
        self._world = world
        self._observer = observer
        self._driver = driver
        self._truth = Truth(world, driver, observer)
        self._limits = Limits(world, observer)
        self._found: set[tuple[str, str]] = set()
        self._judged = 0
        self.violations: list[Violation] = []

    async def run(self) -> None:
        """Judge until canceled."""
        while True:
            self._truth.look()
            for host in self._world.members.values():
                if self._truth.lasts_s("runs", host.name):
                    self._judge(host)
            self._judge_publications()
            self._judge_exclusions()
            for check, name, text in self._limits.look():
                self._violate(check, name, text)
            await trio.sleep(LOOK_S)

    def _judge_publications(self) -> None:
        """Judge the leaves of the structures since the last look."""
        truth, new = self._truth, self._observer.publications[self._judged :]
        self._judged += len(new)
        down = [each for each in self._world.members if truth.lasts_s("down", each)]
        for each in new if 2 * len(down) < len(self._world.members) else ():
            for owner in self._observer.owners_of(each.structure):
                if truth.lasts_s("down", owner) > LATE_S:
                    self._violate("live leaf", each.host, f"a structure has the leaf of {owner}, down for a minute")

    def _judge_exclusions(self) -> None:
        """Judge the newest structure, unless all leaves are excluded: then a later structure cannot replace it."""
        members, published = self._world.members, self._observer.publications
        excluded = [self._observer.excluded_for(each, STANDING_S) for each in members]
        lasting = frozenset.intersection(*excluded) if excluded and published else frozenset()
        others = {hash_of(each) for each in self._observer.leaves()} - lasting
        if lasting and others and self._truth.publishes():
            newest = max(published, key=lambda each: decode(each.structure).published_s)
            for leaf in sorted(lasting & leaves_in(newest.structure)):
                self._violate("excluded leaf", newest.host, f"the newest structure still has {leaf}")

    def _judge(self, host: Host) -> None:
        verdict = self._observer.verdict_of(host)
        if verdict is not None:
            for claim in self._false_claims(host.name, verdict.kind, verdict.text):
                self._violate("true verdict", host.name, f"{verdict.text!r}, although {claim}")
        alarms = self._observer.alarms_of(host)
        for kind in DELAYS_S:
            if kind not in alarms and self._truth.is_hidden(kind, host.name):
                self._violate("missing alarm", host.name, f"{kind} has been true for longer than its delay")
        for kind in alarms:
            if kind == "router" and self._has_future_structure(host.name):
                continue
            place = host.name if kind in OF_MACHINE else None
            is_possible = kind != "content-rejected" or host.name in self._driver.outdated
            if not is_possible or not self._truth.had(CAUSES.get(kind, ()), _LASTING.get(kind, LATE_S), place):
                self._violate("true alarm", host.name, f"{kind} is active, and none of its causes has existed")

    def _has_future_structure(self, name: str) -> bool:
        """Return True if a node has published a structure with a later timestamp than now, by a wrong clock.

        Its router, or its file, refuses earlier structures until then.
        """
        now_s = EPOCH_S + self._world.time_s
        return any(
            each.host == name and decode(each.structure).published_s > now_s for each in self._observer.publications
        )

    def _false_claims(self, name: str, kind: str, text: str) -> Iterator[str]:
        truth = self._truth
        if kind == "healthy":
            yield from self._unhealthy(name)
        if kind not in _WITHOUT_QUORUM and truth.lacks_quorum(name):
            yield "it has not reached a majority for a minute"
        if kind == "no-quorum" and truth.has_quorum(name):
            yield "a majority has worked, and all servers were linked, for a minute"
        for target in _DOWN.findall(text):
            if truth.lasts_s("works", target) > LATE_S and truth.lasts_s("linked", *sorted((name, target))) > LATE_S:
                yield f"{target} has worked and has been linked for a minute"
        if _UDP.search(text) and not truth.had((*_LOSSES, *_SEEDS), LATE_S):
            yield "no fault of UDP alone is active"
        for target in _SILENT.findall(text):
            others = [each for each in self._world.members if each != target]
            if truth.lasts_s("works", target) > LATE_S and all(
                truth.lasts_s("linked", *sorted((target, each))) > LATE_S for each in others
            ):
                yield f"{target} has worked and has been linked with all for a minute"

    def _unhealthy(self, name: str) -> Iterator[str]:
        """Yield the facts that a healthy verdict of a node contradicts."""
        for target in self._world.members:
            if self._truth.lasts_s("lost", name, target) > LATE_S:
                yield f"{target} has been lost to it for a minute"
            if self._truth.lacks_router(name, target):
                yield f"the router of {target} has been down"

    def _violate(self, check: str, host: str, text: str) -> None:
        if (host, text) not in self._found:
            self._found.add((host, text))
            self.violations.append(Violation(check, f"{host} at {self._world.time_s:.0f} s: {text}"))


def _processes(fact: tuple[str, ...]) -> set[str]:
    """Return the nodes whose start begins a fact again. A lost node may start, and is still lost."""
    return set(fact[1:2] if fact[0] == "lost" else fact[1:])


def _runs(host: Host) -> bool:
    return host.run is not None and not host.is_paused


def _disk_of(host: Host) -> Disk:
    assert isinstance(host.disk, Disk)
    return host.disk


def _has_disk(host: Host) -> bool:
    disk = _disk_of(host)
    return not (disk.hang or disk.full or disk.sync_delay_s)
