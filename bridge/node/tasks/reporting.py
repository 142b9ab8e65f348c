"""A member's task to report: its application entry once a period, on a change, and after a leader is found.

Each report queries the router and has an id (`request`), so that it can be repeated if its outcome is unknown. An
uncommitted report is outdated after a period; the next one replaces it. Publishing tasks use this node's status from
uncommitted reports too, if they must act alone. The last report of a leaving node has `publishConfig` off and no
leaves. So another node publishes, and new structures omit its leaves, before the farm detects its absence.

*Content of a report:*

    due early         a change of one of these, at most a quarter of a period after the change:
                        its leaves      their set, health and faults
                        each master     its role as publisher, the operator's permission, the structure that the
                                        router accepted, a failure to publish, the key's end
                        its directory   its address; the start or end of a problem
    sent once         the last published structure, after each publication. The node's configuration, in the first
                      report of a run and once an hour (the log is kept for days, and readers begin anywhere)

Figures such as load change continuously and wait for the next report. The content to send once is repeated until a
report with it is committed. If every report contained this content, it would fill most of the log: a structure is
larger than the other content.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from random import Random

import trio
from msgspec import Struct, field
from msgspec.structs import replace

from bridge.api.control import SubmitOutcome
from bridge.api.events import LEAF_HEALTHY, LEAF_UNHEALTHY, REPORT_FAILED, EventType
from bridge.api.trace import Scalar
from bridge.core.log.figures import RouterStatus
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import LeafFault, LeafStatus, MetaStatus, Report, ReportedDirectory
from bridge.node.router.router import RouterError
from bridge.node.tasks.measuring import MeasuringTask
from bridge.node.tasks.publishing import PublishingTask
from bridge.node.tasks.task_context import TaskContext
from bridge.wire.i2p.structures import destination_from_base64
from bridge.wire.log.entries import encode
from bridge.wire.log.reports import within_ranges
from consensus import Index
from consensus.sessions import RequestId

LAST_WORD_PATIENCE_S = 2.0
LOG_TIME_LAG_MS = 20_000
"""If log time lags this node's clock by more milliseconds, outdated reports limit log time."""
LOOK_SHARE = 0.25
"""Share of a reporting period between two queries of leaves."""
CONFIGURATION_EVERY_MS = 3_600_000
LEAF_EVENTS_MAX = 4
LEAF_EVENTS_WITHIN_S = 600.0
Gist = tuple[
    frozenset[tuple[str, bool, tuple[LeafFault, ...]]],
    frozenset[tuple[str, str, bool, int | None, int, bool]],
    ReportedDirectory | None,
]


class ReportingTask:
    """The loop of reports."""

    def __init__(self, context: TaskContext, publishing: Sequence[PublishingTask], measuring: MeasuringTask) -> None:
        self._context = context
        self._publishing = publishing
        self._measuring = measuring
        self._random = Random()
        self._sequence = 0
        self._session_start: Index | None = None
        self._leaves = False
        """True if the node leaves the farm; its reports then do not list any leaf."""
        self.figures_dropped = 0
        """The number of figures outside their ranges, which reports omit."""
        self.latest: Report | None = None
        """This node's last measured status, even if the report was not sent."""
        self._leader_known = trio.Event()
        self._news = ReportNews(context.configuration)
        self._health: dict[bytes, LeafHealth] = {}
        masters = (*(key.master for key in context.keys), *(each.destination for each in context.keyless))
        self._masters_by_hash = {destination_from_base64(each).hash: hash_of(each) for each in masters}

    def leadership_changed(self) -> None:
        """Make the first report due immediately once a leader is known."""
        if self._context.replica.server.role.leader is not None:
            self._leader_known.set()

    def refused(self, request: str) -> None:
        """Start a new session of request ids after the farm dropped this node's session."""
        if request.startswith(f"{self._context.request_prefix}-"):
            self._session_start = None

    async def run(self) -> None:
        """Work until canceled."""
        self.leadership_changed()
        await self._until_leader_known()
        while True:
            started = trio.current_time()
            report = replace(await self._own_report(), request=self._next_request())
            if self._leaves:
                return
            with trio.move_on_after(self._context.period_s):
                await self._send(report)
            # Random, because all nodes found the leader at the same moment, and should not report together.
            await self._until_due(started, self._random.uniform(0.9, 1.0), report)

    async def send_final_report(self) -> None:
        """Report that this node does not publish or serve leaves; nothing is reported after that."""
        self._leaves = True
        report = replace(await self._own_report(), request=self._next_request())
        with trio.move_on_after(LAST_WORD_PATIENCE_S):
            await self._send(report)

    async def _until_leader_known(self) -> None:
        """Wait for a leader. Query the router until then: this node may have to publish alone."""
        with trio.move_on_after(self._context.expected_period_s):
            await self._leader_known.wait()
        while not self._leader_known.is_set():
            await self._own_report(sent=False)
            with trio.move_on_after(self._context.expected_period_s):
                await self._leader_known.wait()

    async def _until_due(self, started: float, share: float, report: Report) -> None:
        """Sleep until the next report is due, the last one is outdated, or log time needs a report.

        The period may change during the sleep: the leader sets it in the log.
        """
        reported = gist_of(report.destinations, report.masters, report.directory)
        seen_ms = self._context.applied_state.state.log_time_ms
        look_at = started + self._context.period_s * LOOK_SHARE
        while (now := trio.current_time()) < (due_at := started + self._context.period_s * share):
            if (log_time_ms := self._context.applied_state.state.log_time_ms) != seen_ms:
                if self._is_needed_for_log_time():
                    return
                seen_ms = log_time_ms
            if now >= look_at:
                look_at = now + self._context.period_s * LOOK_SHARE
                if gist_of((await self._query_leaves())[0], self._masters(), self._directory()) != reported:
                    return
            else:
                with trio.CancelScope(deadline=min(due_at, look_at)):
                    await self._context.applied_state.news()

    def _is_needed_for_log_time(self) -> bool:
        """Return True if log time needs a report of this node: log time lags, or this node's last date was wrong.

        The reports of a majority bound log time, and they are up to a period old. So each node sends one more report
        after each clock entry while old reports limit log time.
        """
        context = self._context
        own = context.applied_state.state.servers.get(context.replica.server_id)
        lags = context.clock_ms() - context.applied_state.state.log_time_ms > LOG_TIME_LAG_MS
        return lags or (own is not None and own.clock_off)

    async def _send(self, report: Report) -> None:
        unreported, configuration = self._news.unreported(report)
        try:
            entry = self._context.signer.sign(encode(unreported, config=configuration))
        except ValueError as error:
            self._context.trace.append(REPORT_FAILED, {"reason": str(error)})
        else:
            answer = await self._context.replica.submit(entry, repeat_unknown=True)
            if answer.outcome is SubmitOutcome.COMMITTED:
                self._news.committed(unreported, configuration)

    async def _own_report(self, *, sent: bool = True) -> Report:
        context = self._context
        for task in self._publishing:
            await task.review_key()
        status, leaves = await self._query_router()
        if self._leaves:
            leaves = ()
        # Measurements are taken only if the report will be sent, because each is returned once.
        remote_destinations, remote_metas = self._measuring.take() if sent else ((), ())
        whole = Report(
            cluster=context.cluster,
            date_ms=context.clock_ms(),
            server_id=context.replica.server_id,
            router=status,
            masters=self._masters(),
            destinations=leaves,
            remote_destinations=remote_destinations,
            remote_metas=remote_metas,
            directory=self._directory(),
        )
        report, dropped = within_ranges(whole)
        self.figures_dropped += len(dropped)
        for task in self._publishing:
            task.reported(report)
        self.latest = report
        return report

    def _masters(self) -> tuple[MetaStatus, ...]:
        return (*(task.status() for task in self._publishing), *self._context.keyless)

    def _directory(self) -> ReportedDirectory | None:
        directory = self._context.directory
        return None if directory is None else directory.status

    def _next_request(self) -> str:
        """Return the next id in this node's session, which starts with the first report and after each loss."""
        if self._session_start is None:
            self._session_start, self._sequence = self._context.applied_state.state.applied_index, 0
        self._sequence += 1
        return str(RequestId(self._context.request_prefix, self._session_start, self._sequence))

    async def _query_router(self) -> tuple[RouterStatus, tuple[LeafStatus, ...]]:
        """Query router and leaves. A router without a reply counts as absent: the node reports without it."""
        context = self._context
        status = RouterStatus(attached=False)
        leaves: tuple[LeafStatus, ...] = ()
        try:
            status = await context.router.local_router_status()
        except RouterError as error:
            failures = [str(error)]
        else:
            leaves, failures = await self._query_leaves()
        if failures:
            context.router_alarm.set("asking", "; ".join(failures))
        else:
            context.router_alarm.clear("asking")
        return status, leaves

    async def _query_leaves(self) -> tuple[tuple[LeafStatus, ...], list[str]]:
        """Return the status of each leaf that replied, and the failures of other leaves."""
        leaves, failures = [], []
        try:
            for leaf_hash, behind in (await self._leaf_hashes()).items():
                try:
                    leaf = await self._context.router.local_leaf_status(leaf_hash)
                    self._note_health(leaf_hash, leaf)
                    leaves.append(replace(leaf, master_hash=behind))
                except RouterError as error:
                    failures.append(str(error))
        except RouterError as error:
            failures.append(str(error))
        return tuple(leaves), failures

    def _note_health(self, leaf_hash: bytes, leaf: LeafStatus) -> None:
        """Append an event if the failed conditions of a leaf have changed."""
        event = self._health.setdefault(leaf_hash, LeafHealth()).event(leaf, trio.current_time())
        if event is not None:
            self._context.trace.append(*event)

    async def _leaf_hashes(self) -> dict[bytes, str | None]:
        """Return this node's leaves, each with its one master; None if it serves all masters."""
        router = self._context.router
        if not self._masters_by_hash:
            return dict.fromkeys(await router.local_leaf_hashes(b""))
        behind: dict[bytes, list[str]] = {}
        for master_hash, name in self._masters_by_hash.items():
            for leaf_hash in await router.local_leaf_hashes(master_hash):
                behind.setdefault(leaf_hash, []).append(name)
        return {each: found[0] if len(found) < len(self._masters_by_hash) else None for each, found in behind.items()}


class LeafHealth(Struct):
    """The events about the health of a leaf, at most `LEAF_EVENTS_MAX` in `LEAF_EVENTS_WITHIN_S` seconds.

    If a leaf changes more often, the next permitted event reports its present health, the age of its last change and
    the number of changes.
    """

    faults: tuple[LeafFault, ...] = ()
    """The last measured faults."""
    reported: tuple[LeafFault, ...] = ()
    """The faults of the last event."""
    unhealthy: LeafStatus | None = None
    """The last status with faults."""
    changes: int = 0
    """Changes of the faults since the last event."""
    changed_s: float = 0.0
    """Time of the last change."""
    began_s: float = 0.0
    """Time when the leaf became unhealthy the last time."""
    events_s: deque[float] = field(default_factory=lambda: deque(maxlen=LEAF_EVENTS_MAX))

    def event(self, leaf: LeafStatus, now_s: float) -> tuple[EventType, dict[str, Scalar]] | None:
        """Return type and facts of the event that is due; None without one."""
        if leaf.faults != self.faults:
            self.began_s = self.began_s if self.faults else now_s
            self.faults, self.changed_s, self.changes = leaf.faults, now_s, self.changes + 1
        self.unhealthy = leaf if leaf.faults else self.unhealthy
        if self.unhealthy is None or leaf.faults == self.reported:
            return None
        if len(self.events_s) == LEAF_EVENTS_MAX and now_s - self.events_s[0] < LEAF_EVENTS_WITHIN_S:
            return None
        self.events_s.append(now_s)
        facts = _health_facts(self.unhealthy)
        if not leaf.faults:
            facts["unhealthyMs"] = round((self.changed_s - self.began_s) * 1000)
        if now_s > self.changed_s:
            facts["agoMs"] = round((now_s - self.changed_s) * 1000)
        if self.changes > 1:
            facts["changes"] = self.changes
        self.reported, self.changes = leaf.faults, 0
        return LEAF_UNHEALTHY if leaf.faults else LEAF_HEALTHY, facts


def _health_facts(leaf: LeafStatus) -> dict[str, Scalar]:
    errors = (each.last_error for each in leaf.conditions if each.condition in leaf.faults)
    return {
        "leaf": hash_of(leaf.destination),
        "conditions": " ".join(each.value for each in leaf.faults),
        "error": "; ".join(filter(None, errors)),
    }


def gist_of(
    leaves: tuple[LeafStatus, ...], masters: tuple[MetaStatus, ...], directory: ReportedDirectory | None
) -> Gist:
    """Return the part of a report whose change makes the next report due early."""
    return (
        frozenset((leaf.destination, leaf.healthy, leaf.faults) for leaf in leaves),
        frozenset(
            (
                each.destination,
                each.publish_config.value,
                each.publishing,
                each.can_sign_until_s,
                each.last_published_time_ms,
                each.publish_failure is None,
            )
            for each in masters
        ),
        directory and replace(directory, problem=directory.problem and ""),
    )


class ReportNews:
    """The content of committed reports. `configuration` contains the node's allow-listed settings, without secrets."""

    def __init__(self, configuration: Mapping[str, object]) -> None:
        self._configuration = configuration
        self._configuration_sent_ms = -math.inf
        self._structures_sent: dict[str, str | None] = {}

    def unreported(self, report: Report) -> tuple[Report, Mapping[str, object] | None]:
        """Return the report without content committed before, and the configuration if it is due."""
        masters = tuple(
            replace(each, last_published_lease_set=None)
            if each.last_published_lease_set == self._structures_sent.get(each.destination)
            else each
            for each in report.masters
        )
        # The clock may have been set back.
        due = abs(report.date_ms - self._configuration_sent_ms) >= CONFIGURATION_EVERY_MS
        return replace(report, masters=masters), self._configuration if due and self._configuration else None

    def committed(self, report: Report, configuration: Mapping[str, object] | None) -> None:
        """Record committed content."""
        for each in report.masters:
            if each.last_published_lease_set is not None:
                self._structures_sent[each.destination] = each.last_published_lease_set
        if configuration is not None:
            self._configuration_sent_ms = report.date_ms
