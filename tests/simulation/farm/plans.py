"""The plan of a trial as plain data: its seed, faults and options. All else in a trial follows from its plan."""

from dataclasses import dataclass
from random import Random

from tests.simulation.farm.nemeses import Fault, Nemesis, draw_faults


@dataclass(frozen=True, slots=True)
class Plan:
    """Choices of a trial. The same plan gives the same trace."""

    seed: int
    nodes: int
    trouble_s: float
    faults: tuple[Fault, ...]
    has_routers: bool = False
    """True: each machine has a Java router or i2pd; False: structures are written to files."""
    has_operator: bool = False
    """True: an operator changes members, keys and addresses (`operators.py`), and new nodes need approval."""
    has_snapshots: bool = False
    """True: a snapshot replaces the log after a few entries, so nodes restart from snapshots and send them."""
    has_requests: bool = False
    """True: one more client sends requests of other kinds (`request_client.py`)."""


def draw_plan(
    seed: int,
    nodes: int | None = None,
    trouble_s: float | None = None,
    *,
    has_routers: bool | None = None,
    has_operator: bool | None = None,
    has_snapshots: bool | None = None,
    has_requests: bool | None = None,
) -> Plan:
    """Return the plan of a seed. A third of all farms have routers, half an operator, and half take snapshots.

    A third get requests of other kinds.
    """
    random = Random(f"{seed}/plan")
    count = random.choice([3, 3, 3, 5])
    length_s = random.choice([30.0, 60.0, 120.0, 240.0])
    count, length_s = nodes or count, trouble_s or length_s
    names = [f"node-{each}" for each in range(1, count + 1)]
    routers = Random(f"{seed}/routers").random() < 1 / 3 if has_routers is None else has_routers
    operated = Random(f"{seed}/has operator").random() < 1 / 2 if has_operator is None else has_operator
    faults = draw_faults(seed, names, length_s, has_routers=routers, has_operator=operated)
    snapshots = Random(f"{seed}/snapshots").random() < 1 / 2 if has_snapshots is None else has_snapshots
    requests = Random(f"{seed}/other requests").random() < 1 / 3 if has_requests is None else has_requests
    return Plan(seed, count, length_s, faults, routers, operated, snapshots, requests)


def read_fault(text: str) -> Fault:
    """Return a fault of the command line: NEMESIS:AT:UNTIL:HOST+HOST:AMOUNT."""
    name, at_s, until_s, hosts, amount = text.split(":")
    return Fault(float(at_s), float(until_s), Nemesis[name], tuple(hosts.split("+")) if hosts else (), float(amount))
