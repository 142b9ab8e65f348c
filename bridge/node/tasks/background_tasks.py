"""The background tasks of a running farm node.

    ReportingTask     once per reporting period, on a change, and after a leader is found: this node's report
    TimekeepingTask   while this node leads: log time, at its election and once per period
    Outage            detects the loss of the quorum
    MeasuringTask     looks up the other nodes' leaves and the masters with this node's router
    PublishingTask    one per master whose key this node has; while this node is the chosen publisher: plan, commit,
                      sign, hand to the router
    Directory         returns the newest signed structures to clients, if the router has a SAM bridge

Each task has its own loops. So a slow router does not delay a clock entry, and the loss of the leader does not delay a
probe of a leaf. All tasks submit through the replica, which finds the leader. Only the leader writes clock entries; the
publisher may be any server.
"""

import trio

from bridge.api.building.log_part import LocalView
from bridge.core.farm.state_machine import Change, RequestRefused
from bridge.core.publishing.without_quorum import acting_publisher, state_as_observed
from bridge.node.tasks.measuring import MeasuringTask
from bridge.node.tasks.outage import Outage
from bridge.node.tasks.publishing import PublishingTask, publishing_alarms
from bridge.node.tasks.reporting import ReportingTask
from bridge.node.tasks.task_context import TaskContext
from bridge.node.tasks.timekeeping import TimekeepingTask


class BackgroundTasks:
    """The background loops. Call `run` once; `changed` receives the changes of the farm's state."""

    def __init__(self, context: TaskContext) -> None:
        self._replica = context.replica
        self._applied_state = context.applied_state
        self.directory = context.directory
        self._outage = Outage(context)
        alarms = publishing_alarms(context.alarms)
        self.publishing = tuple(PublishingTask(context, key, self._outage, alarms) for key in context.keys)
        self._time = TimekeepingTask(context)
        self._measuring = MeasuringTask(context)
        self._reporting = ReportingTask(context, self.publishing, self._measuring)

    @property
    def published(self) -> int:
        """The number of structures that the router accepted in this run of the node."""
        return sum(task.published for task in self.publishing)

    @property
    def figures_dropped(self) -> int:
        """The number of router figures that reports omitted because they were outside their ranges."""
        return self._reporting.figures_dropped

    @property
    def log_is_stalled(self) -> bool:
        """True if this node belongs to the group and `QuorumWatch` considers the quorum lost."""
        return self._outage.lasts and self._outage.is_lost()

    def view_without_quorum(self) -> LocalView | None:
        """Return this node's own view of the farm during a loss of the quorum."""
        own = self._reporting.latest
        if own is None or not self._outage.lasts:
            return None
        farm, observations, log_time_ms = self._outage.farm, self._outage.observations(own), self._outage.log_time_ms
        return LocalView(
            state_as_observed(farm.state, farm.tuning, observations, log_time_ms),
            {
                each: acting_publisher(farm.state, each, observations, log_time_ms // 1000)
                for each in farm.state.masters
            },
            {task.master: task.signed for task in self.publishing if task.signed is not None},
        )

    def changed(self, change: Change) -> None:
        """Handle a change of the farm's state by a committed entry."""
        if isinstance(change, RequestRefused):
            self._reporting.refused(change.request)
        for task in self.publishing:
            task.changed(change)

    async def resign(self) -> None:
        """Stop publishing, because this node leaves: another node takes over, and omits this node's leaves."""
        for task in self.publishing:
            task.resign()
        await self._reporting.send_final_report()

    async def run(self) -> None:
        """Work until canceled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._outage.run)
            nursery.start_soon(self._measuring.run)
            nursery.start_soon(self._reporting.run)
            nursery.start_soon(self._time.run)
            nursery.start_soon(self._follow_leadership)
            nursery.start_soon(self._follow_log)
            if self.directory is not None:
                nursery.start_soon(self.directory.run)
            for task in self.publishing:
                nursery.start_soon(task.run)

    async def _follow_leadership(self) -> None:
        """Make the clock entry or the first report due immediately when leadership changes."""
        while True:
            await self._replica.role_changes()
            self._time.leadership_changed()
            self._reporting.leadership_changed()

    async def _follow_log(self) -> None:
        """Review the publications after each entry that may change a master; entries of clients never do.

        A report, a clock entry or a change of a publication replaces the mapping of the masters.
        """
        masters = self._applied_state.state.masters
        while True:
            await self._applied_state.news()
            if self._applied_state.state.masters is not masters:
                masters = self._applied_state.state.masters
                for task in self.publishing:
                    task.review()
