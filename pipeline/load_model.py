"""A fictional farm's log, entry by entry (`docs/reference/pipeline-sources.md`, 'The generated farm').

    for each reporting period of 30 s
        the leader's clock entry            log time advances, with the jitter of a scheduler
        a report of each running router     load follows the hour of the day and a router's own size
        periodically                        a publication, factors, an operator's cost or exclusion, a hostile entry

The seed and the other parameters determine all bytes of the log. A router has these states:

    up ──(a restart: once in `RESTART_MEAN_DAYS`)──────────▶ down for 1 to 4 periods ──▶ up, uptime restarts
    up ──(failing ones: after an hour of rising job lag)───▶ down for 20 min on average ──▶ up, uptime restarts

When the leader stops, the term rises and another running voter leads. This also happens once in `LEADER_MEAN_HOURS`
without a reason in the log. A hostile entry follows a share of `HOSTILE_SHARE` of the reports. It causes a typical
error of the decoder, or repeats the report.

With labels, the failures of `pipeline/planned_failures.py` replace the failing routers, and reports also contain the
duration of the router's look-up of another lease set.
"""

import base64
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random

from pipeline.planned_failures import Effect, Kind, Label, PlannedFailures

EPOCH_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z: log time of the first entry."""
PERIOD_MS = 30_000
DAY_MS = 86_400_000
VOTERS = 5
RESTART_MEAN_DAYS = 3.0
FAILING_SHARE = 0.05
FAILING_MEAN_HOURS = 8.0
OUTAGE_MEAN_PERIODS = 40.0
WARNING_PERIODS = 120
LEADER_MEAN_HOURS = 12.0
LATE_SHARE = 0.002
HOSTILE_SHARE = 0.0005
CLOCK_OFF_SHARE = 0.01
PUBLICATION_PERIODS = 10
FACTORS_PERIODS, FACTORS_PLACE = 20, 7
FACTORS_LEAVES = 16
FETCH_MS = 300.0
"""The usual duration of a look-up in milliseconds."""
_UNCHANGED = Effect(load=1.0)
_DESTINATION_KEY_BYTES = 384
_ED25519_CERTIFICATE = bytes.fromhex("05000400070000")
_HOSTILE: tuple[bytes, ...] = (
    b"not json at all",
    b'{"router": {"uptime": "a string"}, "id": 1, "date": 2}',
    b'{"id": 1, "date": 99999999999999999999999999, "router": {}}',
    b'{"unheard": "of"}',
    b'{"router": {"uptime": 5}}',
    b"\xff\xfe\xfd not text \x80",
    b'{"cluster": "farm", "date": -1, "id": -7, "router": {"jobLag": 1e999}}',
    b"[" * 4096 + b"]" * 4096,
    b'{"padding": "' + b"x" * 70_000 + b'"}',
    b'{"cluster": "farm", "date": 1767225600000, "id": 1, "router": {"attached": true}, "publication": {}}',
    b"\x00",
    b"{}",
    b'{"cluster": "\\ud800", "date": 1767225600000, "id": 1, "router": {}}',
)


@dataclass(frozen=True, slots=True)
class GeneratedEntry:
    """One entry: the bytes of the application, or None for a configuration."""

    term: int
    value: bytes | None
    author: int | None = None
    """The server that signs it; None for an unsigned entry."""


@dataclass(slots=True)
class _Router:
    server_id: int
    head: str
    tail: str
    size: float
    phase: float
    failing: bool
    clock_offset_ms: int
    up_since_ms: int
    silent_periods: int = 0
    falls_in_periods: int = -1
    sequence: int = 0


@dataclass(slots=True)
class LoadModel:
    """The farm. `entries` gives its log, period by period."""

    routers: int
    days: float
    seed: int = 1
    kinds: Mapping[Kind, int] | None = None
    """The frequency of each kind of labeled failure, in hundredths; None without labels."""
    hostile: int = 0
    reports: int = 0
    leader_changes: int = 0
    index: int = 0
    """The index of the last entry given."""
    master: str = field(init=False)
    _remote: str = field(init=False)
    _random: Random = field(init=False)
    _all: list[_Router] = field(init=False)
    _noise: list[float] = field(init=False)
    _planned: PlannedFailures | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._noise = [math.exp(self._random.gauss(0.0, 0.15)) for _ in range(4096)]
        self.master = self._destination(0)
        self._remote = _address(sha256(f"{self.seed} remote".encode()).digest())
        self._all = [self._router(number) for number in range(1, self.routers + 1)]
        if self.kinds is not None:
            ends_ms = EPOCH_MS + self.periods * PERIOD_MS
            self._planned = PlannedFailures(self.routers, EPOCH_MS, ends_ms, self.seed, self.kinds)

    @property
    def labels(self) -> tuple[Label, ...]:
        """The planned events of the routers, server by server."""
        return () if self._planned is None else self._planned.labels

    @property
    def periods(self) -> int:
        """The number of reporting periods in the log."""
        return int(self.days * DAY_MS / PERIOD_MS)

    @property
    def voters(self) -> tuple[int, ...]:
        """Raft ids of the voters: the first few routers."""
        return tuple(router.server_id for router in self._all[:VOTERS])

    def entries(self) -> Iterator[GeneratedEntry]:
        """Yield the whole log in order, from the first configuration on."""
        for entry in self._entries():
            self.index += 1
            yield entry

    def _entries(self) -> Iterator[GeneratedEntry]:
        yield GeneratedEntry(1, None)
        term, leader, log_time_ms = 1, self._all[0], EPOCH_MS
        for period in range(self.periods):
            for router in self._all:
                if self._planned is not None and self._planned.is_down(router.server_id, EPOCH_MS + period * PERIOD_MS):
                    # `_age` subtracts one immediately, so the router does not report in this period.
                    router.silent_periods = 2
                self._age(router, log_time_ms)
            if leader.silent_periods or self._random.random() < PERIOD_MS / (LEADER_MEAN_HOURS * 3_600_000):
                standing = [router for router in self._all[:VOTERS] if not router.silent_periods and router != leader]
                if standing:
                    leader = self._random.choice(standing)
                    term += 1
                    self.leader_changes += 1
                    yield GeneratedEntry(term, None)
            log_time_ms = max(log_time_ms, EPOCH_MS + period * PERIOD_MS + int(self._random.uniform(0, 40)))
            if not leader.silent_periods:
                yield GeneratedEntry(term, _clock(log_time_ms, leader.server_id), leader.server_id)
                for value, author in self._period(period, log_time_ms, leader.server_id):
                    yield GeneratedEntry(term, value, author)

    def _period(self, period: int, log_time_ms: int, leader_id: int) -> Iterator[tuple[bytes, int | None]]:
        chance, choice = self._random.random, self._random.choice
        day = 2 * math.pi * (log_time_ms % DAY_MS) / DAY_MS
        for router in self._all:
            if router.silent_periods or chance() < LATE_SHARE:
                continue
            self.reports += 1
            report = self._report(router, log_time_ms, day)
            yield report, router.server_id
            if chance() < HOSTILE_SHARE:
                self.hostile += 1
                yield (report, router.server_id) if chance() < 1 / len(_HOSTILE) else (choice(_HOSTILE), None)
        publisher = next((router for router in self._all if not router.silent_periods), None)
        if publisher is not None and period % PUBLICATION_PERIODS == 0:
            yield self._publication(publisher, log_time_ms, period), publisher.server_id
        if period % FACTORS_PERIODS == FACTORS_PLACE:
            yield self._factors(), leader_id
        if period % (DAY_MS // PERIOD_MS // 2) == DAY_MS // PERIOD_MS // 4:
            yield self._operator_entry(period), leader_id

    def _report(self, router: _Router, log_time_ms: int, day: float) -> bytes:
        chance = self._random.random
        effect = _UNCHANGED if self._planned is None else self._planned.effect(router.server_id, log_time_ms)
        season = 1.0 + 0.6 * math.sin(day + router.phase)
        load = router.size * season * self._noise[int(chance() * 4096)] * effect.load
        lag_ms = (0.4 + 3.0 * load * load * self._noise[int(chance() * 4096)]) * effect.lag
        if 0 <= router.falls_in_periods < WARNING_PERIODS:
            lag_ms *= 1.0 + 20.0 * (1.0 - router.falls_in_periods / WARNING_PERIODS)
        tunnels, bandwidth = int(load * effect.tunnels * 900), int(load * 400_000)
        router.sequence += 1
        date_ms = log_time_ms + router.clock_offset_ms + int(chance() * 20_000)
        uptime_ms = max(0, log_time_ms - router.up_since_ms)
        return (
            f'{router.head}{date_ms},"id":{router.server_id},"router":{{"attached":true,"uptime":{uptime_ms}'
            f',"jobLag":{lag_ms:.2f},"participatingTunnels":{tunnels},"currentBandwidth":{bandwidth}'
            f',"cpuPercent":{min(99.0, 4 + 40 * load):.1f},"memoryPercent":{30 + 10 * router.size:.1f}}}'
            f'{self._measured(effect, load)}{router.tail}{router.sequence}"}}'
        ).encode()

    def _measured(self, effect: Effect, load: float) -> str:
        """Return the measured duration of the router's look-up of another lease set; it is longer under load."""
        if self._planned is None:
            return ""
        fetch_ms = FETCH_MS * (1.0 + load) * effect.round_trip * self._noise[int(self._random.random() * 4096)]
        return f',"remoteDestinations":[{{"hash":"{self._remote}","reachable":true,"fetchTime":{fetch_ms:.0f}}}]'

    def _publication(self, publisher: _Router, log_time_ms: int, period: int) -> bytes:
        content_hash = sha256(f"{self.seed} {period}".encode()).hexdigest()
        return (
            f'{{"publication":{{"master":"{self.master}","id":{publisher.server_id}'
            f',"published":{log_time_ms // 1000},"contentHash":"{content_hash}"}}}}'
        ).encode()

    def _factors(self) -> bytes:
        leaves = (sha256(f"{self.seed} {router.server_id}".encode()).digest() for router in self._all[:FACTORS_LEAVES])
        names = (_address(leaf) for leaf in leaves)
        factors = ",".join(f'"{name}":{0.5 + 1.5 * self._random.random():.3f}' for name in names)
        return f'{{"factors":{{"throughIndex":{self.index},"formula":"strain-1","factors":{{{factors}}}}}}}'.encode()

    def _operator_entry(self, period: int) -> bytes:
        chosen = self._random.choice(self._all).server_id
        name = _address(sha256(f"{self.seed} {chosen}".encode()).digest())
        half_day = period // (DAY_MS // PERIOD_MS // 2)
        if half_day % 2:
            excluded = "true" if half_day % 4 == 1 else "false"
            return f'{{"exclusion":{{"hash":"{name}","excluded":{excluded}}}}}'.encode()
        return f'{{"cost":{{"hash":"{name}","factor":{0.5 + self._random.random():.2f}}}}}'.encode()

    def _age(self, router: _Router, log_time_ms: int) -> None:
        """Advance a router by one period."""
        if router.silent_periods:
            router.silent_periods -= 1
            if not router.silent_periods:
                router.up_since_ms = log_time_ms
            return
        if router.falls_in_periods >= 0:
            router.falls_in_periods -= 1
            if router.falls_in_periods < 0:
                router.silent_periods = 1 + int(self._random.expovariate(1 / OUTAGE_MEAN_PERIODS))
            return
        if (
            router.failing
            and self._planned is None
            and self._random.random() < PERIOD_MS / (FAILING_MEAN_HOURS * 3_600_000)
        ):
            router.falls_in_periods = WARNING_PERIODS
        elif self._random.random() < PERIOD_MS / (RESTART_MEAN_DAYS * DAY_MS):
            router.silent_periods = self._random.randint(1, 4)

    def _router(self, number: int) -> _Router:
        random = self._random
        leaf = self._destination(number)
        node = sha256(f"{self.seed} node {number}".encode()).hexdigest()[:16]
        publishing = "true" if number == 1 else "false"
        return _Router(
            server_id=number,
            head='{"cluster":"farm","date":',
            tail=(
                f',"meta":{{"destination":"{self.master}","publishConfig":"auto","publishing":{publishing}}}'
                f',"destinations":[{{"destination":"{leaf}","healthy":true}}],"request":"{node}-1-1-'
            ),
            size=random.lognormvariate(-0.5, 0.4),
            phase=random.uniform(-0.8, 0.8),
            failing=random.random() < FAILING_SHARE,
            clock_offset_ms=int(random.uniform(2, 9) * 3_600_000) if random.random() < CLOCK_OFF_SHARE else 0,
            up_since_ms=EPOCH_MS - int(random.expovariate(1 / (RESTART_MEAN_DAYS * DAY_MS))),
        )

    def _destination(self, number: int) -> str:
        seed = sha256(f"{self.seed} destination {number}".encode()).digest()
        data = Random(seed).randbytes(_DESTINATION_KEY_BYTES) + _ED25519_CERTIFICATE
        return base64.b64encode(data, altchars=b"-~").decode()


def _clock(log_time_ms: int, leader_id: int) -> bytes:
    return f'{{"clock":{{"time":{log_time_ms},"id":{leader_id},"period":{PERIOD_MS}}}}}'.encode()


def _address(leaf: bytes) -> str:
    return base64.b32encode(leaf).decode().lower().rstrip("=")
