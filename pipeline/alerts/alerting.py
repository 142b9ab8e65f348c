"""Alerting in parallel with the batches: a thread checks the servers and passes due messages to the receivers.

    a batch is written ──▶ `batch_done` ──▶ look (`servers.sql`) ──▶ table `alerts` ──▶ due ──▶ receivers
                                                                          ▲                         │
                                                                          └── recorded as delivered ◀──┘

A batch only records its newest times and sets a flag. The thread compares the current state of servers with the
recorded alerts. So it may handle several batches together, and a repeated batch does not change the alerts. After a
batch it reads the servers if the table `current_watched` or the set of held-back farms has changed. While an alert is
firing, the thread reads them after every batch and every `LOOK_SECONDS`, because silences can expire. After each check
it rests for `REST_TIMES` times the duration of the check.

*A farm with a backlog does not alert*, because its batches show the past (`Backlog`). A metric counts such farms.

*Undelivered messages stay due.* They are retried every `AGAIN_SECONDS`. A message about the end of an outage has at
most `ENDED_ROUNDS` rounds of attempts in one run. Of consecutive failures of a receiver, only the first is reported.

*A damaged silences file* is reported once. Its last good content stays in effect.

*A message lists the entries* of its farm that are missing since the outage began (`pipeline/serve/gaps.py`).
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.alerts.delivery import Channel, Delivery, Receiver
from pipeline.alerts.outages import FIRING, RESOLVED, Alert, message, message_id, server_of, updated_alerts
from pipeline.alerts.silences import Silence, Silences, SilencesError
from pipeline.output.buckets import Output, OvertakenError
from pipeline.serve.gaps import sentence
from pipeline.serve.metrics import RunMetrics
from pipeline.serve.query import QueryError, documents, stored_gaps
from pipeline.tables.current import PREFIX
from pipeline.tables.delta import Table, stored_version
from pipeline.tables.specs import ALERTS_SPEC, STATES_SPEC
from pipeline.tables.upkeep import Upkeep

NEAR_S = 600.0
SHRINKS_S = 600.0
TURN_S = 3_600.0
"""The longest wait of a held-back farm for its next turn. After it, the farm is not held back any more."""


@dataclass(frozen=True, slots=True)
class _FarmAge:
    at_s: float
    age_s: float
    is_held: bool = True


class Backlog:
    """Farms whose batches show the past: their servers do not alert yet. `clock`: seconds since the epoch.

        full batch, newest entry older than `NEAR_S` ──▶ held back ──(younger, not full, or no entry of it)──▶ free
                                                             └──(not younger after `SHRINKS_S`)──▶ free: not a backlog

    If a batch has the maximum size, more entries may follow it. If its entries are from last week, a server without a
    report then may have been healthy for days. An alert would be false. But a full batch does not prove a backlog: with
    a small limit of entries every batch of a live farm is full. So the age of a farm's newest entry decides. If this
    age does not shrink, the delay is permanent: the log time of the farm is wrong, or the pipeline is too slow. Then an
    alert from late entries is better than a missing alert.

    Each farm is judged separately, so a farm with a long log does not delay alerts of another farm. If farms take turns
    (`pipeline/source/shares.py`), a farm without an entry in a batch may have a backlog; its next turn decides.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[str, _FarmAge] = {}

    @property
    def farms(self) -> frozenset[str]:
        """The farms whose servers do not alert."""
        return frozenset(farm for farm, seen in self._seen.items() if seen.is_held)

    def take(self, newest: Mapping[str, datetime], *, is_full: bool, others_wait: bool = False) -> None:
        """Record a batch with the log time of each farm's newest entry; `others_wait`: other farms may have entries."""
        now_s = self._clock()
        waiting = {
            farm: seen
            for farm, seen in (self._seen.items() if is_full and others_wait else ())
            if farm not in newest and now_s - seen.at_s < TURN_S
        }
        ages_s = {farm: now_s - moment.timestamp() for farm, moment in newest.items()} if is_full else {}
        self._seen = waiting | {
            farm: self._checked(farm, now_s, age_s) for farm, age_s in ages_s.items() if age_s > NEAR_S
        }

    def _checked(self, farm: str, now_s: float, age_s: float) -> _FarmAge:
        seen = self._seen.get(farm)
        if seen is None:
            return _FarmAge(now_s, age_s)
        if now_s - seen.at_s < SHRINKS_S:
            return seen
        return _FarmAge(now_s, age_s, is_held=age_s < seen.age_s)


LOOK_SECONDS = 30.0
REST_TIMES = 4.0
AGAIN_SECONDS = 300.0
ENDED_ROUNDS = 288
"""The number of rounds in a day."""
FINISH_SECONDS = 120.0
STOP_SECONDS = 3.0
_QUERY = "alerts"
_RUN, _CHECK = "run", "check"
"""Subjects of states; the others are `backlog` and the names of receivers."""
_LOOK_SQL = (Path(__file__).parent / "servers.sql").read_text(encoding="utf-8")


class AlertStore:
    """The alerts in the table `alerts`, and the states of the alerting in `alerting_states`.

    The alerting's own thread rewrites all rows at each change. If a run is killed between a delivery and its record,
    the next run delivers that message again, under the same id. The states describe the present run. Raises OSError,
    including its subclass TableDamagedError.
    """

    def __init__(self, output: Output) -> None:
        self._table, self._states_table = Table(output, ALERTS_SPEC), Table(output, STATES_SPEC)
        self._upkeep = Upkeep(None)
        self._batches = {each.spec.name: each.committed(_QUERY) for each in (self._table, self._states_table)}
        self._written: dict[str, list[str]] = {}
        """The files of the last write of each table: after a failed commit, the table may have them or not."""
        states = self._states_table.rows().to_pylist()
        self._states: dict[tuple[str | None, str], dict[str, Any]] = {
            (each["farm"], each["subject"]): each for each in states
        }
        self._stored_states = [*self._states.values()]
        rows = self._table.rows().to_pylist()
        self.alerts = tuple(Alert(**{**row, "delivered": tuple(row["delivered"] or ())}) for row in rows)
        self._stored = self.alerts

    def keep(self, alerts: Sequence[Alert]) -> None:
        """Replace the alerts; `flush` stores them in the table."""
        self.alerts = tuple(alerts)

    def set_state(self, farm: str | None, subject: str, state: str, now: datetime, reason: str = "") -> None:
        """Begin a state of the alerting of a farm, or of all (None); an unchanged state keeps its start."""
        key = farm, subject
        if key not in self._states or self._states[key]["state"] != state:
            self._states[key] = {"farm": farm, "subject": subject, "state": state, "since": now, "reason": reason}

    def begin_run(self, now: datetime, *, sends: bool) -> None:
        """Begin the states of a run, or end the states of an earlier one if this run does not send alerts."""
        self._states = {} if sends else {key: each for key, each in self._states.items() if key == (None, _RUN)}
        self.set_state(None, _RUN, "on" if sends else "off", now)

    def end_state(self, farm: str | None, subject: str) -> None:
        """End a state."""
        self._states.pop((farm, subject), None)

    def flush(self) -> None:
        """Store the alerts and states. After a failure they remain in memory, and the next call retries."""
        states = [*self._states.values()]
        if (states, self.alerts) == (self._stored_states, self._stored):
            return
        if states != self._stored_states:
            self._replace(self._states_table, states)
            self._stored_states = states
        if self.alerts != self._stored:
            self._replace(self._table, [{**asdict(each), "delivered": list(each.delivered)} for each in self.alerts])
            self._stored = self.alerts
        self._upkeep.after_batch([self._table, self._states_table])

    def _replace(self, table: Table, rows: list[dict[str, Any]]) -> None:
        """Replace the rows of a table. Raise OvertakenError, also at each retry, if another process has written it."""
        name, last = table.spec.name, table.committed(_QUERY)
        if last != self._batches[name] and [each.path for each in table.files()] != self._written.get(name):
            raise OvertakenError(f"{table.root} was written by another process: only one pipeline may write there")
        added = table.written(pa.Table.from_pylist(rows, schema=table.spec.schema))
        self._batches[name], self._written[name] = last, [each.path for each in added]
        table.exchange([(_QUERY, last + 1)], added, table.files())
        self._batches[name] = last + 1


def note_run_without_alerts(output: Output) -> None:
    """Record that alerts are off, if an earlier run sent some and was killed."""
    if stored_version(output / STATES_SPEC.name) > 0:
        store = AlertStore(output)
        store.begin_run(datetime.now(UTC), sends=False)
        store.flush()


class Alerting:
    """The alerts of one run."""

    def __init__(
        self,
        output: Output,
        channels: Sequence[Channel],
        keep_firing_ms: int,
        notify: Callable[[str], None],
        metrics: RunMetrics | None = None,
    ) -> None:
        self._output = output
        self._store = AlertStore(output)
        self._silences = Silences(output)
        self._sql = _LOOK_SQL.replace("$keep_ms", str(keep_firing_ms))
        self._notify = notify
        self._metrics = metrics
        self._changed = threading.Condition()
        self._outcomes: list[Delivery] = []
        self._has_begun = False
        self._backlog = Backlog(time.time)
        self._stalled_farms: frozenset[str] = frozenset()
        self._is_nudged = self._is_last = self._is_stopped = False
        self._watched_version: int | None = None
        self._look_not_before_s = self._looked_s = 0.0
        self._in_flight: set[tuple[str, str]] = set()
        self._retry_at_s: dict[tuple[str, str], float] = {}
        self._rounds: Counter[tuple[str, str]] = Counter()
        self._failing: set[str] = set()
        self._problem = self._silences_problem = ""
        self._active: list[Silence] = []
        self._receivers = [Receiver(each, self._done) for each in channels]
        self._thread = threading.Thread(target=self._run, name="alerts", daemon=True)

    def batch_done(self, newest: Mapping[str, datetime], *, is_full: bool, others_wait: bool = False) -> None:
        """Record a batch. `is_full`: more entries may follow; `others_wait`: other farms may have entries, too."""
        with self._changed:
            self._backlog.take(newest, is_full=is_full, others_wait=others_wait)
            self._has_begun = True
            self._is_nudged = True
            self._changed.notify_all()

    @contextmanager
    def running(self) -> Iterator["Alerting"]:
        """Run the thread while the block runs."""
        self._store.begin_run(self._now(), sends=True)
        self._thread.start()
        try:
            yield self
        finally:
            for receiver in self._receivers:
                receiver.stop(STOP_SECONDS)
            with self._changed:
                self._is_stopped = True
                self._changed.notify_all()
            self._thread.join(STOP_SECONDS)

    def finish(self) -> None:
        """Check again after the last batch; wait a limited time until an attempt was made for each due message."""
        with self._changed:
            self._backlog.take({}, is_full=False)
            self._has_begun, self._is_nudged, self._is_last = True, True, True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._is_last, FINISH_SECONDS):
                self._notify("some alerts were not delivered; the next run will deliver them")

    def _done(self, outcome: Delivery) -> None:
        with self._changed:
            self._outcomes.append(outcome)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, LOOK_SECONDS / 10)
                outcomes, self._outcomes = self._outcomes, []
                should_check, is_last, is_stopped = self._check_is_due(), self._is_last, self._is_stopped
                if should_check:
                    self._is_nudged = False
            try:
                self._note(outcomes)
                if should_check and not is_stopped:
                    self._refresh()
                    self._problem = ""
                    self._store.end_state(None, _CHECK)
                if not is_stopped:
                    self._hand_over()
                else:
                    self._store.begin_run(self._now(), sends=False)
                # Stored even at the end of the run: otherwise the next run would repeat the last delivered messages.
                self._store.flush()
            except (QueryError, OSError) as error:
                self._report_once(f"alerts: {error}")
            except Exception as error:  # noqa: BLE001 - alerting must never stop the tables
                self._report_once(f"alerts failed because of a bug in the pipeline: {error!r}")
            if is_stopped:
                return
            with self._changed:
                if is_last and not self._is_nudged and not self._in_flight:
                    self._is_last = False
                    self._changed.notify_all()

    def _has_work(self) -> bool:
        return bool(self._outcomes) or self._is_stopped or self._check_is_due()

    def _check_is_due(self) -> bool:
        if self._is_last:
            return self._is_nudged
        now_s = time.monotonic()
        if not self._has_begun or now_s < self._look_not_before_s:
            return False
        is_firing = any(each.status == FIRING for each in self._store.alerts)
        return self._is_nudged or (is_firing and now_s - self._looked_s >= LOOK_SECONDS)

    def _refresh(self) -> None:
        began_s = self._looked_s = time.monotonic()
        version = stored_version(self._output / f"{PREFIX}watched")
        with self._changed:
            stalled_farms = self._backlog.farms
        is_same = version == self._watched_version and stalled_farms == self._stalled_farms
        self._report_backlog(stalled_farms)
        if not is_same or any(each.status == FIRING for each in self._store.alerts):
            rows = documents(self._output, self._sql) if version >= 0 else []
            servers = [each for each in map(server_of, rows) if each.farm not in stalled_farms]
            now = self._now()
            now_ms = round(now.timestamp() * 1000)
            silenced = {
                (each.farm, each.server_id): _why(silence)
                for silence in self._silences_at(now_ms)
                for each in servers
                if silence.covers(each, now_ms)
            }
            # The alerts of held-back farms stay unchanged.
            resting = [each for each in self._store.alerts if each.farm in stalled_farms]
            others = [each for each in self._store.alerts if each.farm not in stalled_farms]
            found = [*resting, *updated_alerts(others, servers, silenced, now)]
            self._store.keep(sorted(found, key=lambda each: (each.began_at, each.id)))
            self._watched_version = version
        self._look_not_before_s = time.monotonic() + (time.monotonic() - began_s) * REST_TIMES
        if self._metrics is not None:
            firing = [each for each in self._store.alerts if each.status == FIRING and each.held_back is None]
            self._metrics.set_firing(len(firing))

    def _report_backlog(self, stalled_farms: frozenset[str]) -> None:
        for farm in sorted(stalled_farms - self._stalled_farms):
            self._notify(f"alerts of farm {farm} are held back: its batches are full and contain old entries")
            self._store.set_state(farm, "backlog", "paused", self._now(), "batches are full and contain old entries")
        for farm in sorted(self._stalled_farms - stalled_farms):
            self._notify(f"alerts of farm {farm} are no longer held back")
            self._store.end_state(farm, "backlog")
        self._stalled_farms = stalled_farms
        if self._metrics is not None:
            self._metrics.alerts_held_back(len(stalled_farms))

    def _silences_at(self, now_ms: int) -> list[Silence]:
        """Return the silences; if their file is unreadable, its last good content."""
        try:
            self._active, problem = self._silences.active(now_ms), ""
        except SilencesError as error:
            problem = f"new silences are ignored: {error}"
        if problem and problem != self._silences_problem:
            self._notify(problem)
        self._silences_problem = problem
        return self._active

    def _hand_over(self) -> None:
        """Queue all due messages; messages that a full queue rejects stay due."""
        now_s = time.monotonic()
        for alert in self._store.alerts:
            for receiver in self._receivers:
                word = alert.due(receiver.channel.name)
                key = (receiver.channel.name, "" if word is None else message_id(alert, word))
                if word is None or key in self._in_flight or now_s < self._retry_at_s.get(key, 0.0):
                    continue
                if word == RESOLVED and self._rounds[key] >= ENDED_ROUNDS:
                    continue
                if any(name == key[0] and sent.startswith(alert.id) for name, sent in self._in_flight):
                    # The messages about one outage must arrive in order.
                    continue
                if receiver.offer(message(alert, word, self._gap_of(alert)), key[1]):
                    self._in_flight.add(key)

    def _gap_of(self, alert: Alert) -> str:
        """Return the missing entries of the farm since the beginning of an outage; empty without a gap."""
        try:
            gaps = stored_gaps(self._output)
        except (QueryError, OSError) as error:
            # Send the alert without the gap, because the alert itself is more important.
            return f"it is unknown whether entries are missing: {error}"
        found = [each for each in gaps if each.farm == alert.farm and each.reaches(alert.began_at.date())]
        return sentence(found) if found else ""

    def _note(self, outcomes: Sequence[Delivery]) -> None:
        delivered = {(each.receiver, each.message_id) for each in outcomes if not each.error}
        self._in_flight -= {(each.receiver, each.message_id) for each in outcomes}
        if delivered:
            self._store.keep([_with_delivered(alert, delivered) for alert in self._store.alerts])
        for outcome in outcomes:
            self._report_delivery(outcome)

    def _report_delivery(self, outcome: Delivery) -> None:
        key = (outcome.receiver, outcome.message_id)
        shown = next(each.channel.shown for each in self._receivers if each.channel.name == outcome.receiver)
        if outcome.error:
            self._retry_at_s[key] = time.monotonic() + AGAIN_SECONDS
            self._rounds[key] += 1
            if outcome.receiver not in self._failing:
                self._notify(f"an alert was not delivered and will be retried: {shown}: {outcome.error}")
            self._failing.add(outcome.receiver)
            self._store.set_state(None, outcome.receiver, "undelivered", self._now(), outcome.error)
        else:
            self._store.end_state(None, outcome.receiver)
            self._retry_at_s.pop(key, None)
            self._rounds.pop(key, None)
            if outcome.receiver in self._failing:
                self._notify(f"alerts are delivered again: {shown}")
            self._failing.discard(outcome.receiver)
        if self._metrics is not None:
            self._metrics.count_attempt(is_delivered=not outcome.error)

    def _now(self) -> datetime:
        return datetime.now(UTC)

    def _report_once(self, problem: str) -> None:
        self._store.set_state(None, _CHECK, "blind", self._now(), problem)
        if problem != self._problem:
            self._notify(problem)
        self._problem = problem


def _with_delivered(alert: Alert, delivered: set[tuple[str, str]]) -> Alert:
    for receiver, delivered_id in sorted(delivered):
        if delivered_id.startswith(alert.id):
            alert = alert.with_delivered(receiver, delivered_id.rpartition("-")[2])
    return alert


def _why(silence: Silence) -> str:
    until = datetime.fromtimestamp(silence.until_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"silenced until {until}" + (f": {silence.reason}" if silence.reason else "")
