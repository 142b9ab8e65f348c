"""What a member of a founded farm does by itself, for as long as it lives.

    report     once a reporting period, and as soon as there is a leader: this node's application entry
    clock      while it leads: log time, at its election and once a period
    publish    while it is chosen: plan ─▶ commit the plan ─▶ accepted ─▶ sign ─▶ hand over to the router

Each is a loop of its own, so that a slow router delays no clock entry and a lost leader no probe of a leaf. All of them
submit through the replica, which finds the leader. None of them is the leader's duty but the clock: the publisher need
not lead.

One plan is under way at a time, from its proposal until the router has it: a router that is slow must not make its node
fill the log with plans. What comes to nothing is tried again with growing pauses, for the same reason.

A plan that was accepted and then lost (the process died before it signed) leaves no trace on the router; the publisher
therefore compares what it handed over in this life with what was accepted last, and plans anew if they differ.
"""

import math
from dataclasses import dataclass
from random import Random

import trio

from bridge.core.control import SubmitOutcome
from bridge.core.farm import Change, PublicationAccepted, PublicationRefused, PublisherChanged, RequestRefused
from bridge.core.publication import Pace, PlannedPublication, plan_publication
from bridge.core.records import Clock, LeafStatus, MetaStatus, Publication, PublishConfig, Report, RouterStatus
from bridge.node.alarms import Alarms
from bridge.node.event_log import EventLog
from bridge.node.ledger import Ledger, clock_ms
from bridge.node.replica import Replica
from bridge.node.router import Router, RouterError
from bridge.wire.application import ApplicationError, encode
from bridge.wire.destination_keys import TRANSIENT_ALARM_S, SigningKey
from bridge.wire.i2p import I2pError
from bridge.wire.meta_lease_set import LeaseSetError
from consensus.core.effects import Outcome
from consensus.core.position import Index
from consensus.core.sessions import RequestId
from consensus.node.clock import now_ms

CLOCK_ALARM = "clock"
ROUTER_ALARM = "router"
KEY_ALARM = "signing-key"
DAY_S = 86_400
PLAN_INTERVAL_SECONDS = 1.0
CLOCK_RETRY_S = 1.0
RETRY_FIRST_S, RETRY_LONGEST_S = 2.5, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What the duties are done with."""

    cluster: str
    replica: Replica
    ledger: Ledger
    router: Router
    signing_key: SigningKey | None
    publish: PublishConfig
    pace: Pace
    period_ms: int
    """The period that this node writes into clock entries while it leads; all follow the leader's."""
    trace: EventLog
    alarms: Alarms
    request_prefix: str
    """NodeId and generation: with the birth of a session and a number behind it, it names a submission for ever."""


class Duties:
    """The loops. `run` them once; `changed` hears what the state machine did."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._random = Random()
        self._sequence = 0
        self._born: Index | None = None
        self._proposed: PlannedPublication | None = None
        """Submitted, and neither accepted nor refused so far."""
        self._accepted: PlannedPublication | None = None
        """Accepted, and not with the router yet."""
        self._review = trio.Event()
        self._hand_over_due = trio.Event()
        self._handed_over: Publication | None = None
        self._led = trio.Event()
        self._leader_known = trio.Event()
        self._not_before_s = -math.inf
        self._failures = 0
        self._router_troubles: dict[str, str] = {}
        self.published = 0
        self.last_published_ms = 0

    @property
    def master(self) -> str | None:
        """The master destination (base64) that this node can sign for."""
        key = self._member.signing_key
        return None if key is None else key.destination.base64

    def changed(self, change: Change) -> None:
        """A committed entry changed the farm's state."""
        match change:
            case PublicationAccepted(publication):
                if self._proposed is not None and self._proposed.publication == publication:
                    self._proposed, self._accepted = None, self._proposed
                self._hand_over_due.set()
            case PublicationRefused(publication, _):
                if self._proposed is not None and self._proposed.publication == publication:
                    self._proposed = None
                    self._back_off()
            case PublisherChanged():
                self._review.set()
            case RequestRefused(request) if request.startswith(f"{self._member.request_prefix}-"):
                self._born = None
            case _:
                pass

    def leadership_changed(self) -> None:
        """Another server leads, or this one: its clock entry, or its first report, is due at once."""
        self._led.set()
        self._note_leader()

    def _note_leader(self) -> None:
        if self._member.replica.server.role.leader is not None:
            self._leader_known.set()

    async def run(self) -> None:
        """Works until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report)
            nursery.start_soon(self._keep_time)
            nursery.start_soon(self._publish)
            nursery.start_soon(self._hand_over)

    def _period_s(self) -> float:
        return self._member.ledger.farm.tuning.period_ms / 1000

    # -- report --------------------------------------------------------------------------------------------------------

    async def _report(self) -> None:
        self._note_leader()
        await self._leader_known.wait()
        while True:
            started = trio.current_time()
            report = await self._own_report()
            # What was not taken within a period is out of date: the next report says it better.
            with trio.move_on_after(self._period_s()):
                await self._send_report(report)
            # A little apart from the others, who heard of the leader at the same moment.
            await self._until_period_after(started, self._random.uniform(0.9, 1.0))

    async def _until_period_after(self, started: float, share: float) -> None:
        """Sleeps to the next report's time. The period may change meanwhile: it is the leader's, and in the log."""
        while (left := started + self._period_s() * share - trio.current_time()) > 0:
            with trio.move_on_after(left):
                await self._member.ledger.news()

    async def _send_report(self, report: Report) -> None:
        try:
            entry = encode(report)
        except ApplicationError as error:
            self._member.trace.append("report-failed", {"reason": str(error)})
        else:
            await self._member.replica.submit(entry, repeat_unknown=True)

    async def _own_report(self) -> Report:
        member = self._member
        status, leaves = await self._ask_router()
        return Report(
            cluster=member.cluster,
            date_ms=clock_ms(),
            server_id=member.replica.server_id,
            router=status,
            meta=self._meta_status(),
            destinations=leaves,
            request=self._next_request(),
        )

    def _next_request(self) -> str:
        """A number in this node's session, which begins with the first report and whenever the farm forgot it."""
        if self._born is None:
            self._born, self._sequence = self._member.ledger.state.applied_index, 0
        self._sequence += 1
        return str(RequestId(self._member.request_prefix, self._born, self._sequence))

    async def _ask_router(self) -> tuple[RouterStatus, tuple[LeafStatus, ...]]:
        """How router and leaves are. A router that does not answer is none: the node goes on reporting without it."""
        member = self._member
        master_hash = b"" if member.signing_key is None else member.signing_key.destination.hash
        status, leaves, failures = RouterStatus(attached=False), [], []
        try:
            status = await member.router.local_router_status()
            for leaf_hash in await member.router.local_leaf_hashes(master_hash):
                try:
                    leaves.append(await member.router.local_leaf_status(leaf_hash))
                except RouterError as error:
                    failures.append(str(error))
        except RouterError as error:
            failures.append(str(error))
        self._router_trouble("asking", "; ".join(failures) or None)
        return status, tuple(leaves)

    def _meta_status(self) -> MetaStatus | None:
        member = self._member
        if member.signing_key is None:
            return None
        self._review_key(member.signing_key)
        master = member.signing_key.destination.base64
        known = member.ledger.state.masters.get(master)
        return MetaStatus(
            destination=master,
            publish_config=member.publish,
            publishing=known is not None and known.choice.server_id == member.replica.server_id,
            last_published_time_ms=self.last_published_ms,
            can_sign_until_s=member.signing_key.can_sign_until_s,
        )

    def _review_key(self, key: SigningKey) -> None:
        left_s = key.can_sign_until_s - clock_ms() // 1000
        if key.expires_s is None or left_s >= TRANSIENT_ALARM_S:
            self._member.alarms.clear(KEY_ALARM)
            return
        ends = f"ends in {left_s // DAY_S} days; then it" if left_s > 0 else "has ended: it"
        self._member.alarms.set(
            KEY_ALARM,
            f"this node's signing key {ends} cannot publish any more",
            "make a new one with `garlicfarm keys offline` where the master key is, and restart this node with it; see "
            "docs/keys.md",
        )

    # -- clock ---------------------------------------------------------------------------------------------------------

    async def _keep_time(self) -> None:
        member = self._member
        while True:
            self._led = trio.Event()
            if member.replica.leads:
                written = await self._write_clock()
                pause_s = member.period_ms / 1000
                with trio.move_on_after(pause_s if written else min(pause_s, CLOCK_RETRY_S)):
                    await self._led.wait()
            else:
                # It is the leader's clock that counts; this one is judged again when it leads.
                member.alarms.clear(CLOCK_ALARM)
                await self._led.wait()

    async def _write_clock(self) -> bool:
        member = self._member
        raft = member.replica.server.describe().raft
        reading = member.ledger.log_time.next_entry(
            now_ms(), clock_ms(), member.replica.server_id, raft.configuration.voter_ids
        )
        if reading.alarm is None:
            member.alarms.clear(CLOCK_ALARM)
        else:
            member.alarms.set(CLOCK_ALARM, reading.alarm, "check NTP on every router; see docs/operating.md, 'Alarms'")
        entry = Clock(reading.time_ms, member.replica.server_id, member.period_ms)
        with trio.move_on_after(self._period_s()):
            answer = await member.replica.server.propose((encode(entry),))
            return answer.outcome is Outcome.COMMITTED
        return False

    # -- publish -------------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        while True:
            # Entries of no interest come by the thousand, so it is not they that wake this loop.
            self._review = trio.Event()
            with trio.move_on_after(PLAN_INTERVAL_SECONDS):
                await self._review.wait()
            plan = self._plan()
            if plan is not None:
                await self._propose(plan)

    def _plan(self) -> PlannedPublication | None:
        member = self._member
        master = self.master
        under_way = self._proposed is not None or self._accepted is not None
        if master is None or under_way or trio.current_time() < self._not_before_s:
            return None
        return plan_publication(
            member.ledger.state,
            master,
            member.replica.server_id,
            member.pace,
            member.ledger.log_time.paced(now_ms()),
            handed_over=self._handed_over,
        )

    async def _propose(self, plan: PlannedPublication) -> None:
        self._proposed = plan
        answer = await self._member.replica.submit(encode(plan.publication))
        if answer.outcome is SubmitOutcome.COMMITTED:
            with trio.move_on_after(self._period_s()):
                await self._member.replica.server.wait_applied(answer.index or 0)
        # Of unknown fate: should it be committed after all, it is simply not handed over, and planned again.
        self._proposed = None

    def _back_off(self) -> None:
        """Each new try is an entry of the log, so tries that come to nothing become rare."""
        self._failures += 1
        self._not_before_s = trio.current_time() + min(RETRY_FIRST_S * 2**self._failures, RETRY_LONGEST_S)

    async def _hand_over(self) -> None:
        """What goes to the router, one thing after the other: it must not stop what it is just beginning."""
        while True:
            self._hand_over_due = trio.Event()
            if self._accepted is not None:
                await self._sign_and_publish(self._accepted)
                self._accepted = None
            elif self._is_deposed():
                await self._stop_publishing()
            else:
                await self._hand_over_due.wait()

    async def _sign_and_publish(self, plan: PlannedPublication) -> None:
        member, publication = self._member, plan.publication
        if member.signing_key is None:
            return
        facts = {"second": publication.published_s, "entries": len(plan.entries)}
        try:
            structure = member.signing_key.publication(publication.published_s, plan.entries)
            await member.router.publish_meta_lease_set(member.signing_key.destination.hash, structure)
        except (LeaseSetError, I2pError, RouterError) as error:
            self._router_trouble("publishing", f"publishing failed: {error}")
            member.trace.append("publish-failed", {**facts, "reason": str(error)})
            self._back_off()
            return
        self._failures = 0
        self._router_trouble("publishing", None)
        self._handed_over = publication
        self.published += 1
        self.last_published_ms = clock_ms()
        member.trace.append("published", facts, log_time_ms=member.ledger.state.log_time_ms)

    def _is_deposed(self) -> bool:
        """Only once another server's publication is accepted: until then the old structure is the best there is."""
        if self._handed_over is None:
            return False
        known = self._member.ledger.state.masters.get(self._handed_over.master)
        accepted = None if known is None else known.publication
        return accepted is not None and accepted.server_id != self._member.replica.server_id

    async def _stop_publishing(self) -> None:
        member = self._member
        self._handed_over = None
        if member.signing_key is None:
            return
        try:
            await member.router.stop_publishing_meta_lease_set(member.signing_key.destination.hash)
        except RouterError as error:
            member.trace.append("publish-failed", {"reason": f"stopping: {error}"})
        else:
            member.trace.append("publishing-stopped", {}, log_time_ms=member.ledger.state.log_time_ms)

    def _router_trouble(self, doing: str, text: str | None) -> None:
        """What the router did not do, or does again: one alarm for all of it."""
        if text is None:
            self._router_troubles.pop(doing, None)
        else:
            self._router_troubles[doing] = text
        if self._router_troubles:
            texts = "; ".join(text for _, text in sorted(self._router_troubles.items()))
            self._member.alarms.set(ROUTER_ALARM, texts, "see docs/operating.md, 'Alarms', and the router's own log")
        else:
            self._member.alarms.clear(ROUTER_ALARM)
