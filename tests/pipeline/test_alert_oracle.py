"""An oracle for alerts: generated outages of a farm whose nodes have clocks up to an hour apart.

The oracle knows the plan of each farm: crashes, illness, planned stops, removals, and absences below the limit. It does
not read the tables. Each crash and each illness (a router not attached) needs exactly one alert at its log time.
Nothing else causes an alert. Some events are stored twice, with and without log time. The events of one observer have
no log time.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pipeline.alerts.outages import RESOLVED, Alert, updated_alerts
from pipeline.tables.specs import EVENTS
from tests.effort import over_seeds
from tests.pipeline.farm_log_server import EPOCH_MS
from tests.pipeline.made_tables import write_batch
from tests.pipeline.test_alerts import KEEP_MS, NOON, PERIOD_MS, Farm, add_admission

SERVERS = (2, 3, 4)
"""Server 1 always reports, so that log time advances."""
OBSERVERS = ("node-1", "node-5", "node-6", "node-7")
UNDATED = OBSERVERS[-1]
"""The observer whose events lack the log time."""
SKEW_MAX_MS = 3_600_000
CALM = KEEP_MS // PERIOD_MS + 5
"""Reporting periods of health that end an outage."""
KINDS = ("crash", "illness", "planned stop", "removal", "short absence", "short illness")
SILENT_MS = 3 * PERIOD_MS
LOOKS_MAX = KEEP_MS // PERIOD_MS - 3
"""The most periods between two checks. An outage that is over before its first check does not cause an alert."""


@dataclass(frozen=True)
class Episode:
    """A failure or absence of a server: its kind, and its periods from `begin` up to, but excluding, `end`."""

    server: int
    kind: str
    begin: int
    end: int

    @property
    def expected_ms(self) -> int | None:
        """Log time of the start of the outage that needs an alert; None without one."""
        match self.kind:
            case "crash":
                return EPOCH_MS + self.begin * PERIOD_MS + SILENT_MS
            case "illness":
                return EPOCH_MS + (self.begin + 3) * PERIOD_MS
            case _:
                return None


def plans(random: Random) -> Iterator[Episode]:
    """Yield the episodes of all servers: most kinds for each server, and all kinds in each farm."""
    kinds = random.sample(KINDS, len(KINDS)) * 2
    for place, server in enumerate(SERVERS):
        yield from plan(random, server, kinds[2 * place :][: len(KINDS)])


def plan(random: Random, server: int, kinds: Sequence[str]) -> Iterator[Episode]:
    """Yield the episodes of a server, in random order, each after a calm time."""
    at = random.randint(3, 12)
    for kind in random.sample(kinds, len(kinds)):
        length = 1 if kind == "short absence" else random.randint(1, 2) if kind == "short illness" else 0
        end = at + (length or random.randint(4, 30))
        yield Episode(server, kind, at, end)
        at = end + CALM + random.randint(0, 10)


class ObservedFarm(Farm):
    """A farm whose observers write traces with false clocks."""

    def __init__(self, output: Path, random: Random) -> None:
        super().__init__(output)
        self.random = random
        self.skews = {each: random.randint(-SKEW_MAX_MS, SKEW_MAX_MS) for each in OBSERVERS}
        self.cursors = Counter[str]()
        self.traced: list[dict[str, Any]] = []
        for server in SERVERS:
            add_admission(self, server, f"{server:02d}" * 8, f"node-{server}")

    def observe(self, server: int, status: str) -> None:
        """Add a change of a member's status to the traces of some observers, always to the undated one."""
        seen_by = {*self.random.sample(OBSERVERS[:-1], self.random.randint(1, 3)), UNDATED}
        for node in sorted(seen_by):
            self.cursors[node] += 1
            at_ms = self.log.log_time_ms + self.random.randint(0, PERIOD_MS)
            row: dict[str, Any] = {
                "farm": None,
                "node": node,
                "cursor": self.cursors[node],
                "time_ms": at_ms + self.skews[node],
                "log_time": None,
                "clock_offset_ms": None,
                "kind": f"member-{status}",
                "data": json.dumps({"member": f"node-{server}", "id": f"{server:02d}" * 8}),
            }
            dated = {**row, "log_time": at_ms * 1000, "clock_offset_ms": self.skews[node], "day": NOON.date()}
            copies = [row] if node == UNDATED else [dated, row] if self.random.random() < 0.3 else [dated]
            self.traced += self.random.sample(copies, len(copies))

    def write_all(self) -> None:
        """Write the new entries and events as one batch."""
        self.write()
        if self.traced:
            write_batch(self.output, EVENTS, self.batch, self.traced)
            self.traced = []


def run_plan(farm: ObservedFarm, episodes: list[Episode]) -> Iterator[None]:
    """Write the farm period by period; yield after each batch, at random periods."""
    next_look = LOOKS_MAX
    for period in range(max(each.end for each in episodes) + CALM):
        farm.log.tick(PERIOD_MS)
        active = {each.server: each for each in episodes if each.begin <= period < each.end}
        for each in episodes:
            if each.end == period and each.kind in {"crash", "planned stop", "removal"}:
                farm.observe(each.server, "alive")
                if each.kind == "removal":
                    farm.add_entry(removal={"server": each.server, "removed": False})
            if each.begin == period:
                begin_episode(farm, each)
            if each.kind == "crash" and each.begin + 2 == period:
                farm.observe(each.server, "dead")
        for server in (1, *SERVERS):
            kind = active[server].kind if server in active else "healthy"
            if kind in {"healthy", "illness", "short illness"}:
                add_report(farm, server, attached=kind == "healthy")
        if period == next_look:
            farm.write_all()
            yield
            next_look += farm.random.randint(2, LOOKS_MAX)
    farm.write_all()
    yield


def begin_episode(farm: ObservedFarm, episode: Episode) -> None:
    match episode.kind:
        case "planned stop":
            farm.observe(episode.server, "left")
        case "removal":
            farm.add_entry(removal={"server": episode.server, "removed": True})
            farm.observe(episode.server, "dead")
        case "crash":
            farm.observe(episode.server, "suspect")
        case _:
            pass


def add_report(farm: Farm, server: int, *, attached: bool) -> None:
    body = {
        "cluster": "farm",
        "date": farm.log.log_time_ms,
        "id": server,
        "router": {"attached": attached, "uptime": farm.log.log_time_ms - EPOCH_MS},
        "destinations": [],
    }
    farm.log.add(value=json.dumps(body))


def judged(output: Path, seed: int) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Return the outages that need an alert, and the alerts sent: server and log time of the start."""
    random = Random(seed)
    farm = ObservedFarm(output, random)
    episodes = [*plans(random)]
    alerts: list[Alert] = []
    sent: set[tuple[int, int]] = set()
    for _ in run_plan(farm, episodes):
        alerts = updated_alerts(alerts, farm.servers().values(), {}, NOON)
        sent |= {
            (each.server_id, round(each.began_at.timestamp() * 1000))
            for each in alerts
            if each.due("webhook") is not None
        }
    assert all(each.status == RESOLVED for each in alerts if each.held_back is None)
    return {(each.server, each.expected_ms) for each in episodes if each.expected_ms is not None}, sent


@pytest.mark.soak
@over_seeds(8)
def test_alerts_equal_generated_outages_despite_false_clocks(seed: int, tmp_path: Path) -> None:
    expected, sent = judged(tmp_path, seed)
    assert expected, f"seed {seed}"
    precision, recall = len(expected & sent) / max(1, len(sent)), len(expected & sent) / len(expected)
    assert (precision, recall) == (1.0, 1.0), f"seed {seed}: missed {expected - sent}, false {sent - expected}"
