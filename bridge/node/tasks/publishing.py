"""A member's task to publish one master destination, while it is the chosen publisher.

    plan ─▶ commit the plan ─▶ accepted ─▶ sign ─▶ hand over to the router
    plan without a quorum, while the log does not move ─▶ sign ─▶ hand over, with an alarm

One plan at a time is active, from its proposal until the router has it. Otherwise a node with a slow router would fill
the log with plans. For the same reason failed plans are repeated with growing pauses.

While another node is the publisher, this one may be its standby (`bridge.node.tasks.standby`).

The routers of other nodes look up the published structure (`bridge.core.publishing.arrival`). If they do not find it,
this node raises an alarm and plans once more. After that, only the usual refresh publishes the structure again.

If the process ends between the acceptance of a plan and its signature, the structure does not reach the router. The
publisher therefore compares its last hand-over in this run with the last accepted plan, and plans again if they differ.
"""

import math
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import trio
from msgspec import Struct

from bridge.api.alarms import PUBLISHING_WITHOUT_QUORUM, SIGNING_KEY
from bridge.api.alarms import STRUCTURE_NOT_FOUND as STRUCTURE_NOT_FOUND_ALARM
from bridge.api.control import SubmitOutcome
from bridge.api.events import (
    PUBLISH_FAILED,
    PUBLISHED,
    PUBLISHING_STOPPED,
    SIGNING_KEY_RENEWED,
    STRUCTURE_NOT_FOUND,
    STRUCTURE_SEEN,
)
from bridge.api.trace import Scalar
from bridge.core.farm.state_machine import Change, PublicationAccepted, PublicationRefused
from bridge.core.log.figures import RouterStatus
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import MetaStatus, Publication, PublishConfig, Report
from bridge.core.membership.admission import server_name
from bridge.core.membership.authors import EntryWithoutEffect
from bridge.core.publishing.arrival import LookUp
from bridge.core.publishing.candidates import candidates_of
from bridge.core.publishing.publication import LEAD_MAX_MS, PlannedPublication, is_up_to_date, plan_publication
from bridge.core.publishing.without_quorum import acting_publisher, plan_without_quorum
from bridge.core.state.farm_state import StructureHandOver
from bridge.node.events.alarms import Alarms, SharedAlarm
from bridge.node.router.router import RouterError
from bridge.node.security.signing_keys import PublishingKey, judge_key
from bridge.node.tasks.outage import Outage
from bridge.node.tasks.standby import Standby
from bridge.node.tasks.task_context import TaskContext
from bridge.wire.i2p.meta_lease_set import LeaseSetError
from bridge.wire.i2p.structures import I2pError, base64_encode
from bridge.wire.log.entries import encode
from consensus import NotLeaderError, ServerBusyError, ServerStoppedError, next_tick_s
from consensus import now_ms as monotonic_ms
from consensus.net import Backoff

FAILURES_BEFORE: Final = 2
AWAY_FIRST_S, AWAY_LONGEST_S = 60.0, 960.0


class PublishingTurns:
    """Failures to publish one master, and withdrawals: a withdrawn node passes its *turn* on to another server.

        failures in a row < 2             repeated, with the pauses of the publishing task
        2, and another server is able     withdrawn: the report has `publishConfig` off and the failure
        after 1, 2, 4, … at most 16 min   able again; one more failure withdraws the node, a success resets all

    The choice of the publisher compares figures of the router's health, but a healthy router may refuse each structure.
    If failures did not count, the farm would choose the node of this router permanently. A withdrawal uses
    `publishConfig`, which every version of the state machine supports. So servers that do not support the JSON member
    `publishFailure` make the same choice.

    Without another able server a withdrawal would be useless, and the node repeats its attempts. The pauses grow. So if
    all routers refuse, the farm changes its publisher less and less often. `now_s` is the time of trio's clock.
    """

    def __init__(self) -> None:
        self._backoff = Backoff(AWAY_FIRST_S, AWAY_LONGEST_S)
        self._failures = 0
        self._away_until_s = -math.inf
        self.failure: str | None = None
        """The time and reason of the last attempt, if it failed."""
        self._is_of_earlier_router = False

    def failed(self, reason: str, now_s: float, date_ms: int) -> None:
        """Record a failed attempt. The recorded text contains the time, because the next attempt may be hours later."""
        self.failure = f"{datetime.fromtimestamp(date_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC: {reason}"
        self._is_of_earlier_router = False
        self._failures += 1
        if self._failures >= FAILURES_BEFORE and not self.is_away(now_s):
            self._away_until_s = now_s + self._backoff.next_s()

    def succeeded(self) -> None:
        """Reset the failures after the router accepted a structure."""
        self._backoff.reset()
        self._failures, self._away_until_s, self.failure = 0, -math.inf, None

    def router_replaced(self) -> None:
        """Drop the failure of the replaced router; during a withdrawal, drop it when the withdrawal ends."""
        self._is_of_earlier_router = True

    def failure_at(self, now_s: float) -> str | None:
        """Return the failure of the present router, or the reason of the present withdrawal."""
        return None if self._is_of_earlier_router and not self.is_away(now_s) else self.failure

    def is_away(self, now_s: float) -> bool:
        """Return True while this node should leave the turn to another server, if one is able."""
        return now_s < self._away_until_s


PLAN_INTERVAL_SECONDS = 1.0
REST_INTERVAL_SECONDS = 5.0
"""Seconds between plans if the next plan is a refresh."""
FIRST_PLAN_INTERVAL_SECONDS = 0.2
"""Seconds between plans until a master's first publication. It is short, because a new farm waits for this
publication."""
RETRY_FIRST_S, RETRY_LONGEST_S = 5.0, 60.0


class PublishingAlarms(Struct, frozen=True):
    """The alarms shared by the tasks of all masters."""

    key: SharedAlarm
    unfenced: SharedAlarm
    not_found: SharedAlarm


def publishing_alarms(alarms: Alarms) -> PublishingAlarms:
    """Return the alarms of a node's publishing tasks."""
    return PublishingAlarms(
        SharedAlarm(alarms, SIGNING_KEY),
        SharedAlarm(alarms, PUBLISHING_WITHOUT_QUORUM),
        SharedAlarm(alarms, STRUCTURE_NOT_FOUND_ALARM),
    )


class PublishingTask:
    """The loops of one master. `run` them once; `changed` receives the changes of the state machine."""

    def __init__(self, context: TaskContext, key: PublishingKey, outage: Outage, alarms: "PublishingAlarms") -> None:
        self._context = context
        self._key = key
        self._outage = outage
        self._alarms = alarms
        self._own: Report | None = None
        self._proposed: PlannedPublication | None = None
        """The submitted plan, if it is neither accepted nor refused so far."""
        self._accepted: PlannedPublication | None = None
        """The accepted plan, if it is not handed over to the router yet."""
        self._review = trio.Event()
        self._hand_over_due = trio.Event()
        self._handed_over: Publication | None = None
        self._not_before_s = -math.inf
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S)
        self._turns = PublishingTurns()
        self._standby = Standby(context, key)
        self._standby_due = False
        self._resigned = False
        self._is_current = False
        """True once this run of the node has applied all entries acknowledged before its first plan."""
        self._is_seen: bool | None = None
        """The last result of other nodes' look-ups in this node's turn; None before a clear result."""
        self._hand_over_again = False
        """True if the look-ups did not find the last structure."""
        self.published = 0
        self.last_published_ms = context.published.second(key.master_hash) * 1000
        """Timestamp in milliseconds of the structure that the router last accepted, in any run of the node."""
        self._last_structure: str | None = None
        self.signed: PlannedPublication | None = None
        """The plan that the router last accepted in this run of the node."""

    @property
    def master(self) -> str:
        """The master destination, in I2P's base64."""
        return self._key.master

    def changed(self, change: Change) -> None:
        """Handle a change of the farm's state by a committed entry."""
        match change:
            case PublicationAccepted(publication):
                if self._proposed is not None and self._proposed.publication == publication:
                    plan, self._proposed = self._proposed, None
                    if not self._lists_excluded_leaf(plan):
                        self._accepted = plan
                self._hand_over_due.set()
            case PublicationRefused(publication, _):
                if self._proposed is not None and self._proposed.publication == publication:
                    self._proposed = None
                    self._back_off()
            case EntryWithoutEffect("publication", author) if author == self._context.signer.node_id:
                # Delay the next attempt, because each one adds an entry to the log even if the farm rejects it.
                self._back_off()
            case _:
                pass

    def review(self) -> None:
        """Review the plan, the look-ups and the standby's structure now, because a relevant entry was applied."""
        self._review.set()

    def _lists_excluded_leaf(self, plan: PlannedPublication) -> bool:
        """Return True if the plan lists a leaf excluded while the plan waited for its commit."""
        excluded = self._context.applied_state.state.weights.excluded
        return any(hash_of(each.destination) in excluded for each in plan.entries)

    def status(self) -> MetaStatus:
        """Return this node's status in publishing the master, for its report."""
        context = self._context
        known = context.applied_state.state.masters.get(self.master)
        obstacle = context.router.publishing_obstacle(self._key.master_hash)
        publishing = known is not None and known.choice.server_id == context.replica.server_id
        is_off = self._resigned or obstacle is not None or self._hands_over_turn()
        return MetaStatus(
            destination=self.master,
            publish_config=PublishConfig.OFF if is_off else self._key.publish,
            publishing=publishing,
            last_published_time_ms=self.last_published_ms,
            last_published_lease_set=self._last_structure,
            can_sign_until_s=self._key.key.can_sign_until_s,
            publish_failure=None if self._resigned else obstacle or self._turns.failure_at(trio.current_time()),
            standby=self._standby.is_ready and not publishing,
        )

    def _hands_over_turn(self) -> bool:
        """Return True after repeated failures if another server is able to publish; False without a quorum."""
        context = self._context
        if self._outage.lasts or not self._turns.is_away(trio.current_time()):
            return False
        farm, own_id = context.applied_state.farm, context.replica.server_id
        others = (each for each in candidates_of(farm.state, self.master, farm.tuning) if each.server_id != own_id)
        return any(each.inability is None for each in others)

    async def review_key(self) -> None:
        """Read a renewed key. Set or clear the alarms about the key's end and about an obstacle to publishing."""
        now_s = self._context.applied_state.date_ms() // 1000
        key = self._key
        if key.path is not None and await trio.to_thread.run_sync(key.renew, now_s):
            self._context.trace.append(SIGNING_KEY_RENEWED, {"until": self._key.key.can_sign_until_s})
        judge_key(self._key, now_s, self._alarms.key)
        obstacle = self._context.router.publishing_obstacle(self._key.master_hash)
        if obstacle is None:
            self._context.router_alarm.clear(f"{self._cause}: obstacle")
        else:
            self._context.router_alarm.set(f"{self._cause}: obstacle", f"this node does not publish: {obstacle}")

    def resign(self) -> None:
        """Stop publishing in this run of the node."""
        self._resigned = True

    def reported(self, own: Report) -> None:
        """Store this node's latest report, even if the farm does not accept it."""
        if self._own is not None and _is_replaced(self._own.router, own.router):
            self._turns.router_replaced()
        self._own = own

    async def run(self) -> None:
        """Work until canceled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._publish)
            nursery.start_soon(self._hand_over)

    # -- the plan ------------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        while True:
            # Thousands of entries may arrive at a time, so only relevant changes wake this loop.
            self._review = trio.Event()
            with trio.move_on_at(next_tick_s(self._plan_interval_s())):
                await self._review.wait()
            if self._outage.lasts:
                self._plan_alone()
                continue
            self._alarms.unfenced.clear(self.master)
            self._review_look_ups()
            plan = self._plan()
            if plan is not None and not self._is_current:
                # The log of the last run may name this node, although the farm has chosen another publisher since.
                with suppress(NotLeaderError, ServerBusyError, ServerStoppedError):
                    await self._context.replica.read_barrier()
                    self._is_current = True
                plan = self._plan() if self._is_current else None
            if plan is not None:
                await self._propose(plan)
            elif self._is_not_publisher():
                known = self._context.applied_state.state.masters.get(self.master)
                is_other_chosen = known is not None and known.choice.server_id is not None
                if is_other_chosen and not self._turns.is_away(trio.current_time()):
                    # Another node publishes, so the next attempt may be hours away: the failure is out of date.
                    self._context.router_alarm.clear(self._cause)
                if self._standby.review(is_allowed=not self._resigned):
                    self._standby_due = True
                    self._hand_over_due.set()

    def _is_not_publisher(self) -> bool:
        known = self._context.applied_state.state.masters.get(self.master)
        is_chosen = known is not None and known.choice.server_id == self._context.replica.server_id
        return not is_chosen and self._handed_over is None

    def _plan_interval_s(self) -> float:
        state, own_id = self._context.applied_state.state, self._context.replica.server_id
        known = state.masters.get(self.master)
        if known is not None and known.publication is None and known.choice.server_id is not None:
            return FIRST_PLAN_INTERVAL_SECONDS
        is_settled = (
            self._standby.is_settled
            and is_up_to_date(state, self.master, own_id, self._hand_over_in_force)
            and self._outage.left_ms() >= 1000 * REST_INTERVAL_SECONDS
        )
        return REST_INTERVAL_SECONDS if is_settled else PLAN_INTERVAL_SECONDS

    @property
    def _hand_over_in_force(self) -> Publication | None:
        return None if self._hand_over_again else self._handed_over

    def _plan_alone(self) -> None:
        """Plan without a quorum, and hand over the plan without a commit."""
        if self._accepted is not None or self._own is None or trio.current_time() < self._not_before_s:
            return
        farm, observations, now_ms = self._outage.farm, self._outage.observations(self._own), self._outage.log_time_ms
        if acting_publisher(farm.state, self.master, observations, now_ms // 1000) != self._context.replica.server_id:
            self._alarms.unfenced.clear(self.master)
            return
        plan = plan_without_quorum(
            farm.state,
            self.master,
            farm.tuning,
            self._context.pace,
            observations,
            now_ms,
            handed_over=self._handed_over,
        )
        if plan is not None:
            self._alarms.unfenced.set(
                self.master,
                f"this node publishes {self._key.address} alone, without a majority of the voters",
            )
            self._accepted = plan
            self._hand_over_due.set()

    def _plan(self) -> PlannedPublication | None:
        context = self._context
        under_way = self._proposed is not None or self._accepted is not None
        if under_way or self._outage.holds or trio.current_time() < self._not_before_s:
            return None
        log_time_ms = context.applied_state.log_time.paced(monotonic_ms())
        return plan_publication(
            context.applied_state.state,
            self.master,
            context.replica.server_id,
            context.pace,
            log_time_ms,
            handed_over=self._hand_over_in_force,
            noted_s=self._noted_second(log_time_ms),
        )

    def _review_look_ups(self) -> None:
        """Report whether other nodes' routers find the structure. If they do not, hand it over again."""
        context, own_id, last = self._context, self._context.replica.server_id, self._handed_over
        if last is None:
            return
        look_ups, period_ms = context.applied_state.look_ups, context.applied_state.farm.tuning.period_ms
        found = look_ups.is_seen(self.master, StructureHandOver(own_id, last.published_s), period_ms)
        if found is self._is_seen or (found is None and self._is_seen):
            return
        self._is_seen = found
        if found is None:  # Reset: the nodes that did not find the structure no longer look it up.
            self._alarms.not_found.clear(self.master)
            return
        address = self._key.address
        facts: dict[str, Scalar] = {"master": address, "second": last.published_s}
        if found:
            self._alarms.not_found.clear(self.master)
            context.trace.append(STRUCTURE_SEEN, facts)
        else:
            self._hand_over_again = True
            missing = (each for each in look_ups.of_others(self.master, own_id) if not each.is_found)
            self._alarms.not_found.set(
                self.master,
                f"the router of this node accepted the structure of {address}, and the routers of"
                f" {self._names(missing)} do not find it",
            )
            context.trace.append(STRUCTURE_NOT_FOUND, facts)

    def _names(self, look_ups: Iterable[LookUp]) -> str:
        admitted = self._context.applied_state.state.admitted
        return ", ".join(server_name(admitted, each.server_id) for each in look_ups)

    def _noted_second(self, log_time_ms: int) -> int:
        """Return the timestamp of the last structure that this node handed over in any run; 0 if far in the future.

        After `recover`, log time restarts at a value before the outage, but the router has a later structure. A plan
        then waits until log time has passed the timestamp of this structure. Log time soon reaches this machine's
        clock, so the wait ends. If the timestamp is later than both by more than `LEAD_MAX_MS`, a clock was ahead, and
        the wait could last for years.
        """
        second = self._context.published.second(self._key.master_hash)
        latest_ms = max(log_time_ms, self._context.clock_ms()) + LEAD_MAX_MS
        return second if second * 1000 <= latest_ms else 0

    async def _propose(self, plan: PlannedPublication) -> None:
        try:
            entry = self._context.signer.sign(encode(plan.publication))
        except ValueError as error:
            self._context.trace.append(PUBLISH_FAILED, {"second": plan.publication.published_s, "reason": str(error)})
            self._back_off()
            return
        self._proposed = plan
        answer = await self._context.replica.submit(entry)
        if answer.outcome is SubmitOutcome.COMMITTED:
            with trio.move_on_after(self._context.period_s), suppress(ServerStoppedError):
                await self._context.replica.server.wait_applied(answer.index or 0)
        # If the plan is still proposed, its outcome is unknown. If it is committed later, this node does not hand it
        # over, and makes a new plan.
        self._proposed = None

    def _back_off(self) -> None:
        """Delay the next attempt. Each attempt adds an entry to the log, so the pauses grow."""
        self._not_before_s = trio.current_time() + self._backoff.next_s()

    # -- the router ----------------------------------------------------------------------------------------------------

    async def _hand_over(self) -> None:
        """Pass plans and stops to the router one by one: a stop must not end a publication that has just begun."""
        while True:
            self._hand_over_due = trio.Event()
            if self._accepted is not None:
                await self._sign_and_publish(self._accepted)
                self._accepted = None
            elif self._is_deposed():
                await self._stop_publishing()
            elif self._standby_due:
                self._standby_due = False
                await self._serve_standby()
            else:
                await self._hand_over_due.wait()

    async def _sign_and_publish(self, plan: PlannedPublication) -> None:
        context, publication = self._context, plan.publication
        facts = {"second": publication.published_s, "entries": len(plan.entries)}
        try:
            structure = self._key.key.publication(publication.published_s, plan.entries)
            await context.router.publish_meta_lease_set(self._key.master_hash, structure)
        except (LeaseSetError, I2pError, RouterError) as error:
            context.router_alarm.set(self._cause, f"publishing failed: {error}")
            context.trace.append(PUBLISH_FAILED, {**facts, "reason": str(error)})
            self._turns.failed(str(error), trio.current_time(), context.clock_ms())
            self._back_off()
            return
        self._backoff.reset()
        self._turns.succeeded()
        context.router_alarm.clear(self._cause)
        self._handed_over, self.signed, self._hand_over_again = publication, plan, False
        self.published += 1
        self.last_published_ms = publication.published_s * 1000
        self._last_structure = base64_encode(structure)
        self._standby.published(structure)
        context.structures.offer(self.master, context.replica.server_id, self._last_structure)
        await context.published.note(self._key.master_hash, publication.published_s)
        context.trace.append(PUBLISHED, facts, log_time_ms=context.applied_state.state.log_time_ms)

    @property
    def _cause(self) -> str:
        return f"publishing {self._key.address}"

    def _is_deposed(self) -> bool:
        """Return True if the farm has accepted a later publication of another server."""
        if self._handed_over is None:
            return False
        known = self._context.applied_state.state.masters.get(self.master)
        accepted = None if known is None else known.publication
        return (
            accepted is not None
            and accepted.server_id != self._context.replica.server_id
            and accepted.published_s > self._handed_over.published_s
        )

    async def _stop_publishing(self) -> None:
        context = self._context
        self._handed_over = self.signed = self._is_seen = None
        self._hand_over_again = False
        self._alarms.not_found.clear(self.master)
        try:
            if not self._standby.deposed():
                await context.router.stop_publishing_meta_lease_set(self._key.master_hash)
        except RouterError as error:
            context.trace.append(PUBLISH_FAILED, {"reason": f"stopping: {error}"})
        else:
            facts: dict[str, Scalar] = {"master": self._key.address}
            context.trace.append(PUBLISHING_STOPPED, facts, log_time_ms=context.applied_state.state.log_time_ms)

    async def _serve_standby(self) -> None:
        if self._is_not_publisher():
            try:
                await self._standby.serve()
            except RouterError as error:
                self._context.trace.append(PUBLISH_FAILED, {"reason": f"stopping: {error}"})


def _is_replaced(before: RouterStatus, now: RouterStatus) -> bool:
    """Return True if a router was attached again or has restarted: it may be another router."""
    began_again = before.uptime_ms is not None and now.uptime_ms is not None and now.uptime_ms < before.uptime_ms
    return now.attached and (not before.attached or began_again)
