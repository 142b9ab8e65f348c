"""A member's task to report: its application entry once a period, on a change, and as soon as there is a leader.

Each report asks the router anew and names itself (`request`), so that one whose fate is unknown can be repeated. A
report that was not taken within a period is out of date; the next one replaces it. Reports that are not taken still
tell the publishing tasks how this node is, should they have to act alone. A node that leaves the farm says in a last
report that it publishes no more and has no leaves: another one takes over, and the structures lose its leaves, at once
and not when its silence is noticed.

*What is news in a report:*

    due at once     a leaf fell ill, recovered, has other faults, came or went; this node became or ceased to be a
                    master's publisher; what an operator allows it, or the end of its key, changed
    said once       the structure that was published last, after each publication; the node's configuration, in the
                    first report of a life and once an hour (the log is kept for days, and readers begin anywhere)

Figures such as load move all the time and wait for the next report. What is said once is said again until a report with
it was committed. With every report it would be most of the log: a structure is larger than all the rest.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import trio

from bridge.api.control import SubmitOutcome
from bridge.core.log.figures import RouterStatus
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import LeafFault, LeafStatus, MetaStatus, Report
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
WITNESS_LAG_MS = 20_000
"""A clock entry that leaves log time so far behind this node's clock was held back by reports that were too old."""
LOOK_SHARE = 0.25
"""Of a reporting period: how often leaves are looked at between reports."""
CONFIGURATION_EVERY_MS = 3_600_000
Gist = tuple[frozenset[tuple[str, bool, tuple[LeafFault, ...]]], frozenset[tuple[str, str, bool, int | None]]]


class ReportingTask:
    """The loop."""

    def __init__(self, context: TaskContext, publishing: Sequence[PublishingTask], measuring: MeasuringTask) -> None:
        self._context = context
        self._publishing = publishing
        self._measuring = measuring
        self._random = Random()
        self._sequence = 0
        self._session_start: Index | None = None
        self._leaves = False
        """The node leaves the farm: a report without leaves was its last one."""
        self.figures_dropped = 0
        """Figures outside their ranges, which were left out of reports."""
        self.latest: Report | None = None
        """How this node was when it was last looked at, whether the report was sent or not."""
        self._leader_known = trio.Event()
        self._news = ReportNews(context.configuration)

    def leadership_changed(self) -> None:
        """Another server leads, or this one: the first report is due at once."""
        if self._context.replica.server.role.leader is not None:
            self._leader_known.set()

    def refused(self, request: str) -> None:
        """The farm has forgotten the session in which an entry was named."""
        if request.startswith(f"{self._context.request_prefix}-"):
            self._session_start = None

    async def run(self) -> None:
        """Works until cancelled."""
        self.leadership_changed()
        await self._until_leader_known()
        while True:
            started = trio.current_time()
            report = replace(await self._own_report(), request=self._next_request())
            if self._leaves:
                return
            with trio.move_on_after(self._context.period_s):
                await self._send(report)
            # A little apart from the others, who heard of the leader at the same moment.
            await self._until_due(started, self._random.uniform(0.9, 1.0), report)

    async def last_word(self) -> None:
        """Tell the farm that this node publishes no more and has no leaves; nothing is reported after that."""
        self._leaves = True
        report = replace(await self._own_report(), request=self._next_request())
        with trio.move_on_after(LAST_WORD_PATIENCE_S):
            await self._send(report)

    async def _until_leader_known(self) -> None:
        """Without a leader the node looks at its router all the same: it may have to publish alone."""
        with trio.move_on_after(self._context.expected_period_s):
            await self._leader_known.wait()
        while not self._leader_known.is_set():
            await self._own_report(sent=False)
            with trio.move_on_after(self._context.expected_period_s):
                await self._leader_known.wait()

    async def _until_due(self, started: float, share: float, report: Report) -> None:
        """Sleeps to the next report's time, or until what was said is wrong, or log time needs it.

        The period may change meanwhile: it is the leader's, and in the log.
        """
        said, seen_ms = gist_of(report.destinations, report.masters), self._context.applied_state.state.log_time_ms
        look_at = started + self._context.period_s * LOOK_SHARE
        while (now := trio.current_time()) < (due_at := started + self._context.period_s * share):
            if (log_time_ms := self._context.applied_state.state.log_time_ms) != seen_ms:
                if self._is_witness():
                    return
                seen_ms = log_time_ms
            if now >= look_at:
                look_at = now + self._context.period_s * LOOK_SHARE
                if gist_of((await self._ask_leaves())[0], self._masters()) != said:
                    return
            else:
                with trio.CancelScope(deadline=min(due_at, look_at)):
                    await self._context.applied_state.news()

    def _is_witness(self) -> bool:
        """Whether a report would serve now that log time has moved: it still lags, or this node's last date was off.

        The reports of a majority bound log time, and they are as old as a period is long. So there is one more of them
        after each clock entry for as long as that holds log time back.
        """
        context = self._context
        own = context.applied_state.state.servers.get(context.replica.server_id)
        lags = context.clock_ms() - context.applied_state.state.log_time_ms > WITNESS_LAG_MS
        return lags or (own is not None and own.clock_off)

    async def _send(self, report: Report) -> None:
        told, configuration = self._news.told(report)
        try:
            entry = self._context.signer.sign(encode(told, config=configuration))
        except ValueError as error:
            self._context.trace.append("report-failed", {"reason": str(error)})
        else:
            answer = await self._context.replica.submit(entry, repeat_unknown=True)
            if answer.outcome is SubmitOutcome.COMMITTED:
                self._news.committed(told, configuration)

    async def _own_report(self, *, sent: bool = True) -> Report:
        context = self._context
        for task in self._publishing:
            await task.review_key()
        status, leaves = await self._ask_router()
        if self._leaves:
            leaves = ()
        # What was measured is told once, so it waits for a report that goes out.
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
        )
        report, dropped = within_ranges(whole)
        self.figures_dropped += len(dropped)
        for task in self._publishing:
            task.reported(report)
        self.latest = report
        return report

    def _masters(self) -> tuple[MetaStatus, ...]:
        return (*(task.status() for task in self._publishing), *self._context.keyless)

    def _next_request(self) -> str:
        """A number in this node's session, which begins with the first report and whenever the farm forgot it."""
        if self._session_start is None:
            self._session_start, self._sequence = self._context.applied_state.state.applied_index, 0
        self._sequence += 1
        return str(RequestId(self._context.request_prefix, self._session_start, self._sequence))

    async def _ask_router(self) -> tuple[RouterStatus, tuple[LeafStatus, ...]]:
        """How router and leaves are. A router that does not answer is none: the node goes on reporting without it."""
        context = self._context
        status = RouterStatus(attached=False)
        leaves: tuple[LeafStatus, ...] = ()
        try:
            status = await context.router.local_router_status()
        except RouterError as error:
            failures = [str(error)]
        else:
            leaves, failures = await self._ask_leaves()
        if failures:
            context.router_alarm.set("asking", "; ".join(failures))
        else:
            context.router_alarm.clear("asking")
        return status, leaves

    async def _ask_leaves(self) -> tuple[tuple[LeafStatus, ...], list[str]]:
        """The leaves that could be asked, and why others could not."""
        leaves, failures = [], []
        try:
            for leaf_hash, behind in (await self._leaf_hashes()).items():
                try:
                    leaf = await self._context.router.local_leaf_status(leaf_hash)
                    leaves.append(replace(leaf, master_hash=behind))
                except RouterError as error:
                    failures.append(str(error))
        except RouterError as error:
            failures.append(str(error))
        return tuple(leaves), failures

    async def _leaf_hashes(self) -> dict[bytes, str | None]:
        """The leaves of this node, and for each the one master behind which it stands; None: all of them."""
        context = self._context
        masters = (*(held.master for held in context.keys), *(each.destination for each in context.keyless))
        if not masters:
            return dict.fromkeys(await context.router.local_leaf_hashes(b""))
        behind: dict[bytes, list[str]] = {}
        for master in masters:
            for leaf_hash in await context.router.local_leaf_hashes(destination_from_base64(master).hash):
                behind.setdefault(leaf_hash, []).append(hash_of(master))
        return {each: found[0] if len(found) < len(masters) else None for each, found in behind.items()}


def gist_of(leaves: tuple[LeafStatus, ...], masters: tuple[MetaStatus, ...]) -> Gist:
    """What makes a report due at once when it changes."""
    return (
        frozenset((leaf.destination, leaf.healthy, leaf.faults) for leaf in leaves),
        frozenset(
            (each.destination, each.publish_config.value, each.publishing, each.can_sign_until_s) for each in masters
        ),
    )


class ReportNews:
    """What one node has said so far. `configuration` is its allow-listed settings, without secrets."""

    def __init__(self, configuration: Mapping[str, object]) -> None:
        self._configuration = configuration
        self._configuration_said_ms = -math.inf
        self._structures_said: dict[str, str | None] = {}

    def told(self, report: Report) -> tuple[Report, Mapping[str, object] | None]:
        """The report without what was said already, and the configuration if it is due."""
        masters = tuple(
            replace(each, last_published_lease_set=None)
            if each.last_published_lease_set == self._structures_said.get(each.destination)
            else each
            for each in report.masters
        )
        due = report.date_ms - self._configuration_said_ms >= CONFIGURATION_EVERY_MS
        return replace(report, masters=masters), self._configuration if due and self._configuration else None

    def committed(self, report: Report, configuration: Mapping[str, object] | None) -> None:
        """This was said."""
        for each in report.masters:
            if each.last_published_lease_set is not None:
                self._structures_said[each.destination] = each.last_published_lease_set
        if configuration is not None:
            self._configuration_said_ms = report.date_ms
