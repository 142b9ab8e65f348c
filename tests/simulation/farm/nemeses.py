"""The faults of a trial, drawn from a seed: plain data, so that a failing trial can be made smaller.

    draw_faults(seed, names, trouble_s)   ──▶ (Fault, …), each with its machines, its begin and its end
    Fault.text                            ──▶ a line of the story

Each fault ends. A killed process starts again, a jumped clock is set right, a link heals. So a farm must be healthy
some time after the last end. If damage needs an operator, it is part of an operator's action (`operators.py`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import Final

from bridge.core.log.feature_level import FIRST_LEVEL, SUPPORTED_LEVEL


class Nemesis(Enum):
    """Kind of a fault."""

    KILL = "SIGKILL, then a start"
    POWER_CUT = "power cut, then a start"
    STOP = "SIGTERM, then a start"
    PAUSE = "SIGSTOP, then SIGCONT"
    ISOLATE = "no packets from or to it"
    ONE_WAY = "no packets from the first to the second"
    PART = "no packets between it and the others"
    LOSSY = "loss, duplication and reordering on every link"
    SLOW_LINK = "long delays on every link"
    CLOCK_JUMP = "wall clock set wrong, then right"
    CLOCK_DRIFT = "wall clock drifts, then is set right"
    SLOW_DISK = "each sync takes long"
    HANGING_DISK = "syncs do not return"
    FULL_DISK = "no space on the disk"
    ROUTER_DOWN = "its router ends, then starts"
    ROUTER_REFUSES = "its router does not accept structures"
    ROUTER_HANGS = "its router does not reply"
    LEAVE = "leaves the farm, then returns"
    JOIN_AND_LEAVE = "joins the farm, then leaves"
    JOIN_AND_EVICT = "joins the farm, then is evicted"
    INVITE_AND_LEAVE = "joins by an invitation, whose token another identity tries, too, then leaves"
    HOSTILE = "joins the farm, is a hostile leader and liar, then is evicted"
    REPLACE = "the first is lost, then the second joins in its place"
    RESTORE = "loses its disk, then joins from a backup"
    ROTATE = "the keys are rotated while it is stopped"
    NEW_KEYS = "the keys are replaced"
    MOVE = "has another address, then the previous one"
    ROT = "is stopped, a bit of its stored data flips, and it starts; a damaged directory is replaced"
    CLIENT_KEY = "a client key is admitted, signs entries, and is removed"
    LOG_TIME = "most wall clocks are set wrong, then right, and log time is corrected"
    RECOVER = "all but the first lose their disks, then the first is recovered and the others join it"
    OLD_VERSION = "runs a version of this feature level, then the present one"
    FIRST_CLOCK = "wall clock is wrong at the first start, then right"
    SMALL_MTU = "larger packets are lost on every link"


ENDING: Final = frozenset({Nemesis.KILL, Nemesis.POWER_CUT, Nemesis.STOP})
"""Faults that end a process; its next start is the end of the fault."""
ON_NETWORK: Final = frozenset(
    {Nemesis.LOSSY, Nemesis.SLOW_LINK, Nemesis.SMALL_MTU, Nemesis.ISOLATE, Nemesis.ONE_WAY, Nemesis.PART}
)
OTHER_ENDS: Final = re.compile(
    r"(?P<space>no space left on)|(?P<hang>the disk did not finish a write within)"
    r"|(?P<level>has reached feature level \d.*Install .*garlicfarm)",
    re.IGNORECASE,
)
"""Reasons of the end of a process that are not damage."""
OF_ROUTERS: Final = (Nemesis.ROUTER_DOWN, Nemesis.ROUTER_REFUSES, Nemesis.ROUTER_HANGS)
"""Faults of the routers of `routers.py`, which only some farms have."""
OF_OPERATORS: Final = (
    Nemesis.LEAVE,
    Nemesis.JOIN_AND_LEAVE,
    Nemesis.JOIN_AND_EVICT,
    Nemesis.REPLACE,
    Nemesis.RESTORE,
    Nemesis.ROTATE,
    Nemesis.NEW_KEYS,
    Nemesis.MOVE,
    Nemesis.INVITE_AND_LEAVE,
    Nemesis.HOSTILE,
    Nemesis.ROT,
    Nemesis.CLIENT_KEY,
    Nemesis.LOG_TIME,
    Nemesis.RECOVER,
)
"""Actions of `operators.py`, one after another."""
_VARIANTS: Final = {Nemesis.JOIN_AND_LEAVE: Nemesis.INVITE_AND_LEAVE, Nemesis.JOIN_AND_EVICT: Nemesis.HOSTILE}
"""Actions that replace another action in half of the cases."""
_HONEST: Final = {Nemesis.HOSTILE: Nemesis.JOIN_AND_EVICT}
LATER: Final = (Nemesis.ROT, Nemesis.CLIENT_KEY)
"""Actions after the others, drawn separately."""
DISASTERS: Final = (Nemesis.LOG_TIME, Nemesis.RECOVER)
"""In a part of the trials, one of these is the last action."""
DISASTER_SHARE: Final = 1 / 3
_WEIGHTS: Final = {Nemesis.KILL: 3, Nemesis.POWER_CUT: 4, Nemesis.ISOLATE: 3, Nemesis.ONE_WAY: 2}
FIRST_CLOCKS_S: Final = (0.0, 315_532_800.0, 2_208_988_800.0, 4_102_444_800.0)
"""Wrong clocks at the first start, in seconds since the Unix epoch: in 1970, 1980, 2040 and 2100."""
FIRST_CLOCK_SHARE: Final = 1 / 6
CLOCK_SET_S: Final = (8.0, 15.0)
"""Seconds from the first start until the clock is set, as NTP does after a boot."""
MTU_SHARE: Final = 1 / 5
MTUS_BYTES: Final = (1000.0, 1280.0, 576.0)
"""The largest datagrams of five nodes have about 1,100 bytes."""
ACTIONS_MAX: Final = 10
FIRST_S: Final = 5.0
SHORTEST_S: Final = 0.5
LONGEST_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, from `at_s` to `until_s` of the trouble."""

    at_s: float
    until_s: float
    nemesis: Nemesis
    hosts: tuple[str, ...]
    amount: float = 0.0
    """Depends on the kind: seconds of a jump, sync or delay; rate of drift or loss; feature level; bytes of an MTU.

    For a first clock: its time in seconds since the Unix epoch.
    """

    @property
    def text(self) -> str:
        amount = f" ({self.amount:g})" if self.amount else ""
        return f"{self.at_s:7.1f} s to {self.until_s:.1f} s: {' '.join(self.hosts)}: {self.nemesis.value}{amount}"


def outdated_nodes(faults: Sequence[Fault]) -> frozenset[str]:
    """Return the nodes whose version may be below the farm's level.

    The farm waits for old voters. It does not wait for a version that replaces a newer one, nor for a voter that an
    operator's action has removed.
    """
    has_actions = any(each.nemesis in OF_OPERATORS for each in faults)
    versions = (each for each in faults if each.nemesis is Nemesis.OLD_VERSION)
    return frozenset(each.hosts[0] for each in versions if each.at_s > 0 or has_actions)


def explains_end(faults: Sequence[Fault], name: str, failure: str) -> bool:
    """Return True if the fault of a disk or of a version explains that the process `name` ended with `failure`.

    Without space a node does not start. A node reports a disk that hangs while it stops. An older version refuses to
    run at a feature level above its own.
    """
    found = OTHER_ENDS.search(failure)
    match None if found is None else found.lastgroup:
        case "space":
            return True
        case "hang":
            return any(each.nemesis is Nemesis.HANGING_DISK and name in each.hosts for each in faults)
        case "level":
            return name in outdated_nodes(faults)
        case _:
            return False


def draw_faults(
    seed: int, names: Sequence[str], trouble_s: float, *, has_routers: bool = False, has_operator: bool = False
) -> tuple[Fault, ...]:
    """Return the faults of a seed, in the order of their starts.

    Faults that end the process of one machine never overlap.
    """
    others = (*OF_ROUTERS, *OF_OPERATORS, Nemesis.OLD_VERSION, Nemesis.FIRST_CLOCK, Nemesis.SMALL_MTU)
    kinds = [each for each in Nemesis if each not in others for _ in range(_WEIGHTS.get(each, 1))]
    faults = _draw(Random(f"{seed}/faults"), kinds, names, trouble_s)
    if has_routers:
        faults += _draw(Random(f"{seed}/router faults"), OF_ROUTERS, names, trouble_s)
    if has_operator:
        actions = _draw_actions(seed, names, trouble_s)
        faults += _with_disaster(Random(f"{seed}/last disaster"), actions, names, trouble_s, has_routers=has_routers)
    versions = _draw_versions(Random(f"{seed}/versions"), names, trouble_s)
    if len(versions) > 1:
        # Below the level of the bounds a hostile leader can use up the eras of the keys (docs/how-to/upgrade.md).
        faults = [replace(each, nemesis=_HONEST.get(each.nemesis, each.nemesis)) for each in faults]
    faults += versions
    faults += _draw_first_clocks(Random(f"{seed}/first clocks"), names)
    faults += _draw_mtu(Random(f"{seed}/mtu"), trouble_s)
    return tuple(sorted(faults, key=lambda fault: (fault.at_s, fault.nemesis.name, fault.hosts)))


def _draw(random: Random, kinds: Sequence[Nemesis], names: Sequence[str], trouble_s: float) -> list[Fault]:
    faults: list[Fault] = []
    for _ in range(random.randint(1, max(2, round(trouble_s / 15)))):
        nemesis = random.choice(kinds)
        at_s = round(random.uniform(FIRST_S, max(FIRST_S, trouble_s - SHORTEST_S)), 1)
        length_s = min(LONGEST_S, SHORTEST_S + random.expovariate(1 / 12))
        fault = Fault(
            at_s,
            round(min(at_s + length_s, max(at_s, trouble_s)), 1),
            nemesis,
            _machines(random, nemesis, names),
            _amount(random, nemesis),
        )
        if nemesis not in ENDING or not any(_overlap(fault, each) for each in faults):
            faults.append(fault)
    return faults


def _draw_actions(seed: int, names: Sequence[str], trouble_s: float) -> list[Fault]:
    """Return the actions of an operator. A lost machine does not return, and is not the machine of a later action."""
    random, variants, later = (Random(f"{seed}/{each}") for each in ("operator", "variants", "later actions"))
    actions: list[Fault] = []
    present, at_s = list(names), FIRST_S
    kinds = [each for each in OF_OPERATORS if each not in (*_VARIANTS.values(), *LATER, *DISASTERS)]
    for number in range(len(names) + 1, len(names) + 1 + max(1, round(trouble_s / 30))):
        at_s = round(at_s + random.expovariate(1 / 5), 1)
        until_s = round(at_s + SHORTEST_S + random.expovariate(1 / 10), 1)
        if until_s > trouble_s:
            break
        nemesis, name, new = random.choice(kinds), random.choice(present), f"node-{number}"
        hosts: tuple[str, ...] = (name,)
        if nemesis in {Nemesis.JOIN_AND_LEAVE, Nemesis.JOIN_AND_EVICT}:
            hosts = (new,)
        elif nemesis is Nemesis.REPLACE:
            hosts = (name, new)
            present[present.index(name)] = new
        if nemesis in _VARIANTS and variants.random() < 1 / 2:
            nemesis = _VARIANTS[nemesis]
        actions.append(Fault(at_s, until_s, nemesis, hosts))
        at_s = until_s
    while (at_s := round(at_s + later.expovariate(1 / 5), 1)) + SHORTEST_S < trouble_s and len(actions) < ACTIONS_MAX:
        until_s = round(min(trouble_s, at_s + SHORTEST_S + later.expovariate(1 / 10)), 1)
        actions.append(Fault(at_s, until_s, later.choice(LATER), (later.choice(present),)))
        at_s = until_s
    return actions


def _with_disaster(
    random: Random, actions: list[Fault], names: Sequence[str], trouble_s: float, *, has_routers: bool
) -> list[Fault]:
    """Return the actions, or some of them and then a disaster.

    A router refuses earlier structures for hours after a correction of log time. So the disaster of a farm with routers
    is always `RECOVER`.
    """
    if not actions or random.random() > DISASTER_SHARE:
        return actions
    kept = actions[: random.randrange(len(actions))]
    at_s = kept[-1].until_s if kept else FIRST_S
    present = list(names)
    for each in kept:
        if each.nemesis is Nemesis.REPLACE:
            present[present.index(each.hosts[0])] = each.hosts[1]
    random.shuffle(present)
    if has_routers or random.random() < 1 / 2:
        until_s = round(min(trouble_s, at_s + random.expovariate(1 / 5)), 1)
        return [*kept, Fault(at_s, until_s, Nemesis.RECOVER, tuple(present))]
    until_s = round(min(trouble_s, at_s + random.uniform(20.0, 60.0)), 1)
    amount = random.choice([600.0, 3600.0, 86_400.0])
    return [*kept, Fault(at_s, until_s, Nemesis.LOG_TIME, tuple(present[: len(present) // 2 + 1]), amount)]


def _draw_versions(random: Random, names: Sequence[str], trouble_s: float) -> list[Fault]:
    """Return no fault, or an old version on each machine until its upgrade, or an old version on one machine."""
    drawn, level = random.random(), float(random.randint(FIRST_LEVEL, SUPPORTED_LEVEL - 1))
    if drawn < 1 / 5:
        ends_s = (round(random.uniform(FIRST_S, trouble_s), 1) for _ in names)
        return [
            Fault(0.0, until_s, Nemesis.OLD_VERSION, (name,), level)
            for name, until_s in zip(names, ends_s, strict=True)
        ]
    if drawn < 2 / 5:
        at_s, until_s = sorted(round(random.uniform(FIRST_S, trouble_s), 1) for _ in range(2))
        return [Fault(at_s, until_s, Nemesis.OLD_VERSION, (random.choice(list(names)),), level)]
    return []


def _draw_first_clocks(random: Random, names: Sequence[str]) -> list[Fault]:
    """Return no fault, or a wrong clock at the first start of each machine of a minority."""
    if random.random() > FIRST_CLOCK_SHARE:
        return []
    wrong = random.sample(list(names), random.randint(1, max(1, (len(names) - 1) // 2)))
    until_s = round(random.uniform(*CLOCK_SET_S), 1)
    return [Fault(0.0, until_s, Nemesis.FIRST_CLOCK, (name,), random.choice(FIRST_CLOCKS_S)) for name in wrong]


def _draw_mtu(random: Random, trouble_s: float) -> list[Fault]:
    """Return no fault, or a smaller MTU for a part of the trouble."""
    if random.random() > MTU_SHARE:
        return []
    at_s, until_s = sorted(round(random.uniform(FIRST_S, trouble_s), 1) for _ in range(2))
    return [Fault(at_s, until_s, Nemesis.SMALL_MTU, (), random.choice(MTUS_BYTES))]


def _overlap(fault: Fault, other: Fault) -> bool:
    """Return True if both faults end the process of one machine, and one begins during the other."""
    return (
        other.nemesis in ENDING
        and not set(fault.hosts).isdisjoint(other.hosts)
        and fault.at_s <= other.until_s + 1
        and other.at_s <= fault.until_s + 1
    )


def _machines(random: Random, nemesis: Nemesis, names: Sequence[str]) -> tuple[str, ...]:
    match nemesis:
        case Nemesis.LOSSY | Nemesis.SLOW_LINK:
            return ()
        case Nemesis.ONE_WAY:
            return tuple(random.sample(list(names), 2)) if len(names) > 1 else (names[0],)
        case Nemesis.PART:
            return tuple(sorted(random.sample(list(names), random.randint(1, max(1, len(names) - 1)))))
        case Nemesis.KILL | Nemesis.POWER_CUT if random.random() < 0.2:
            return tuple(names)  # a power cut of the whole rack
        case _:
            return (random.choice(list(names)),)


def _amount(random: Random, nemesis: Nemesis) -> float:
    match nemesis:
        case Nemesis.CLOCK_JUMP:
            return random.choice([-86_400.0, -3600.0, -70.0, -5.0, 5.0, 70.0, 3600.0, 86_400.0])
        case Nemesis.CLOCK_DRIFT:
            return random.choice([-0.1, -0.01, 0.01, 0.1])
        case Nemesis.LOSSY:
            return random.choice([0.02, 0.1, 0.3])
        case Nemesis.SLOW_DISK:
            return random.choice([0.02, 0.2, 1.5])
        case Nemesis.SLOW_LINK:
            return random.choice([0.05, 0.2, 0.6])
        case _:
            return 0.0
