"""The background tasks of a node in a farm, for as long as it runs.

    ReportDuty       once a reporting period, and as soon as there is a leader: this node's application entry
    TimeDuty         while it leads: log time, at its election and once a period
    Outage           notices that there is no quorum
    MeasuringDuty    what its router sees of the others' destinations
    PublishingDuty   one for each master that it holds a key of; while it is chosen: plan, commit, sign, hand over

Each has loops of its own, so that a slow router delays no clock entry and a lost leader no probe of a leaf. All of them
submit through the replica, which finds the leader. None of them is the leader's task but the clock: the publisher need
not lead.
"""

import trio

from bridge.api.build_view import SeenAlone
from bridge.core.farm.state_machine import Change, RequestRefused
from bridge.core.publishing.without_quorum import acting_publisher, as_seen
from bridge.node.tasks.measuring import MeasuringTask
from bridge.node.tasks.outage import Outage
from bridge.node.tasks.publishing import PublishingTask, publishing_alarms
from bridge.node.tasks.reporting import ReportingTask
from bridge.node.tasks.task_context import TaskContext
from bridge.node.tasks.timekeeping import TimekeepingTask


class BackgroundTasks:
    """The loops. `run` them once; `changed` receives the changes of the farm's state."""

    def __init__(self, context: TaskContext) -> None:
        self._replica = context.replica
        self._outage = Outage(context)
        alarms = publishing_alarms(context.alarms)
        self.publishing = tuple(PublishingTask(context, held, self._outage, alarms) for held in context.keys)
        self._time = TimekeepingTask(context)
        self._measuring = MeasuringTask(context)
        self._reporting = ReportingTask(context, self.publishing, self._measuring)

    @property
    def published(self) -> int:
        """Structures that the router took in this life of the node."""
        return sum(task.published for task in self.publishing)

    @property
    def figures_dropped(self) -> int:
        """Figures of the router outside their ranges, which were left out of reports."""
        return self._reporting.figures_dropped

    @property
    def stands_still(self) -> bool:
        """No clock entry was committed for several reporting periods."""
        return self._outage.lasts

    def without_quorum(self) -> SeenAlone | None:
        """What this node makes of the farm by itself while there is no quorum."""
        own = self._reporting.latest
        if own is None or not self._outage.lasts:
            return None
        farm, around, log_time_ms = self._outage.farm, self._outage.around(own), self._outage.log_time_ms
        return SeenAlone(
            as_seen(farm.state, farm.tuning, around, log_time_ms),
            {each: acting_publisher(farm.state, each, around, log_time_ms // 1000) for each in farm.state.masters},
            {task.master: task.signed for task in self.publishing if task.signed is not None},
        )

    def changed(self, change: Change) -> None:
        """A committed entry changed the farm's state."""
        if isinstance(change, RequestRefused):
            self._reporting.refused(change.request)
        for task in self.publishing:
            task.changed(change)

    async def resign(self) -> None:
        """This node leaves: another one publishes in its place, without its leaves, at once."""
        for task in self.publishing:
            task.resign()
        await self._reporting.last_word()

    async def run(self) -> None:
        """Works until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._outage.run)
            nursery.start_soon(self._measuring.run)
            nursery.start_soon(self._reporting.run)
            nursery.start_soon(self._time.run)
            nursery.start_soon(self._follow_leadership)
            for task in self.publishing:
                nursery.start_soon(task.run)

    async def _follow_leadership(self) -> None:
        """When another server leads, or this one, its clock entry, or its first report, is due at once."""
        while True:
            await self._replica.role_changes()
            self._time.leadership_changed()
            self._reporting.leadership_changed()
