"""What a member of a founded farm does by itself, for as long as it lives.

    report     once a reporting period, and as soon as there is a leader: this node's application entry
    clock      while it leads: log time, at its election and once a period
    publish    while it is chosen: plan ─▶ commit the plan ─▶ accepted ─▶ sign ─▶ hand over to the router

Each is a loop of its own, so that a slow router delays no clock entry and a lost leader no probe of a leaf. All of them
submit through the replica, which finds the leader. None of them is the leader's duty but the clock: the publisher need
not lead.

A plan that was accepted and then lost (the process died before it signed) leaves no trace on the router; the publisher
therefore compares what it handed over in this life with what was accepted last, and plans anew if they differ.
"""

import math
from dataclasses import dataclass
from random import Random

import trio

from bridge.core.control import SubmitOutcome
from bridge.core.farm import Change, PublicationAccepted, PublicationRefused
from bridge.core.publication import Pace, PlannedPublication, plan_publication
from bridge.core.records import (
    Clock,
    MetaStatus,
    Publication,
    PublishConfig,
    Report,
)
from bridge.node.alarms import Alarms
from bridge.node.event_log import EventLog
from bridge.node.ledger import Ledger, clock_ms
from bridge.node.replica import Replica
from bridge.node.router import Router, RouterError
from bridge.wire.application import encode
from bridge.wire.destination_keys import TRANSIENT_ALARM_S, SigningKey
from bridge.wire.meta_lease_set import LeaseSetError
from consensus.node.server import now_ms

CLOCK_ALARM = "clock"
ROUTER_ALARM = "router"
KEY_ALARM = "signing-key"
PLAN_INTERVAL_SECONDS = 1.0
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
    """NodeId and generation: with a sequence number behind it, it names a submission for ever."""


class Duties:
    """The three loops. `run` them once; `changed` hears what the state machine did."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._random = Random()
        self._sequence = 0
        self._proposed: dict[Publication, PlannedPublication] = {}
        self._accepted_in, self._accepted = trio.open_memory_channel[PlannedPublication](16)
        self._handed_over: dict[str, Publication] = {}
        self._deposed: set[str] = set()
        self._led = trio.Event()
        self._leader_known = trio.Event()
        self._not_before_s = -math.inf
        self._failures = 0
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
                if publication.server_id != self._member.replica.server_id:
                    self._deposed.add(publication.master)
                plan = self._proposed.pop(publication, None)
                if plan is not None:
                    # The channel never fills up: one plan is proposed at a time.
                    self._accepted_in.send_nowait(plan)
            case PublicationRefused(publication, _):
                self._proposed.pop(publication, None)
            case _:
                pass

    def leadership_changed(self) -> None:
        """Another server leads, or this one: its clock entry, or its first report, is due at once."""
        self._led.set()
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
        self.leadership_changed()
        await self._leader_known.wait()
        while True:
            started = trio.current_time()
            report = await self._own_report()
            await self._member.replica.submit(encode(report), repeat_unknown=True)
            # A little apart from the others, who heard of the leader at the same moment.
            await self._until_period_after(started, self._random.uniform(0.9, 1.0))

    async def _until_period_after(self, started: float, share: float) -> None:
        """Sleeps to the next report's time. The period may change meanwhile: it is the leader's, and in the log."""
        while (left := started + self._period_s() * share - trio.current_time()) > 0:
            with trio.move_on_after(left):
                await self._member.ledger.news()

    async def _own_report(self) -> Report:
        member = self._member
        self._sequence += 1
        master_hash = b"" if member.signing_key is None else member.signing_key.destination.hash
        leaves = []
        for leaf_hash in await member.router.local_leaf_hashes(master_hash):
            try:
                leaves.append(await member.router.local_leaf_status(leaf_hash))
            except RouterError as error:
                member.alarms.set(ROUTER_ALARM, str(error), "see the router's own log")
        return Report(
            cluster=member.cluster,
            date_ms=clock_ms(),
            server_id=member.replica.server_id,
            router=await member.router.local_router_status(),
            meta=self._meta_status(),
            destinations=tuple(leaves),
            request=f"{member.request_prefix}-{self._sequence}",
        )

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
        if key.expires_s is not None and left_s < TRANSIENT_ALARM_S:
            self._member.alarms.set(
                KEY_ALARM,
                f"this node's signing key ends in {max(left_s, 0) // 86_400} days; then it cannot publish any more",
                "sign a new transient key with the master key and give it to this node",
            )

    # -- clock ---------------------------------------------------------------------------------------------------------

    async def _keep_time(self) -> None:
        member = self._member
        while True:
            self._led = trio.Event()
            if member.replica.leads:
                await self._write_clock()
                with trio.move_on_after(self._member.period_ms / 1000):
                    await self._led.wait()
            else:
                await self._led.wait()

    async def _write_clock(self) -> None:
        member = self._member
        raft = member.replica.server.describe().raft
        reading = member.ledger.log_time.next_entry(
            now_ms(), clock_ms(), member.replica.server_id, raft.configuration.voter_ids
        )
        if reading.alarm is None:
            member.alarms.clear(CLOCK_ALARM)
        else:
            member.alarms.set(CLOCK_ALARM, reading.alarm, "check NTP on every router")
        entry = Clock(reading.time_ms, member.replica.server_id, member.period_ms)
        with trio.move_on_after(self._period_s()):
            await member.replica.server.propose((encode(entry),))

    # -- publish -------------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        while True:
            with trio.move_on_after(PLAN_INTERVAL_SECONDS):
                await self._member.ledger.news()
            plan = self._plan()
            if plan is not None:
                await self._propose(plan)

    def _plan(self) -> PlannedPublication | None:
        member = self._member
        master = self.master
        if master is None or self._proposed or trio.current_time() < self._not_before_s:
            return None
        return plan_publication(
            member.ledger.state,
            master,
            member.replica.server_id,
            member.pace,
            member.ledger.log_time.paced(now_ms()),
            handed_over=self._handed_over.get(master),
        )

    async def _propose(self, plan: PlannedPublication) -> None:
        self._proposed[plan.publication] = plan
        answer = await self._member.replica.submit(encode(plan.publication))
        if answer.outcome is not SubmitOutcome.COMMITTED:
            # Of unknown fate: should it be committed after all, it is simply not handed over, and planned again.
            self._proposed.pop(plan.publication, None)
            return
        with trio.move_on_after(self._period_s()):
            await self._member.replica.server.wait_applied(answer.index or 0)
        self._proposed.pop(plan.publication, None)

    async def _hand_over(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_when_deposed)
            async for plan in self._accepted:
                await self._sign_and_publish(plan)

    async def _sign_and_publish(self, plan: PlannedPublication) -> None:
        member, publication = self._member, plan.publication
        if member.signing_key is None:
            return
        facts = {"second": publication.published_s, "entries": len(plan.entries)}
        try:
            structure = member.signing_key.publication(publication.published_s, plan.entries)
            await member.router.publish_meta_lease_set(member.signing_key.destination.hash, structure)
        except (LeaseSetError, RouterError) as error:
            member.alarms.set(ROUTER_ALARM, f"publishing failed: {error}", "see docs/operating.md, 'Alarms'")
            member.trace.append("publish-failed", {**facts, "reason": str(error)})
            # Each new try is an entry of the log.
            self._failures += 1
            self._not_before_s = trio.current_time() + min(RETRY_FIRST_S * 2**self._failures, RETRY_LONGEST_S)
            return
        self._failures = 0
        member.alarms.clear(ROUTER_ALARM)
        self._handed_over[publication.master] = publication
        self._deposed.discard(publication.master)
        self.published += 1
        self.last_published_ms = clock_ms()
        member.trace.append("published", facts, log_time_ms=member.ledger.state.log_time_ms)

    async def _stop_when_deposed(self) -> None:
        """Only once another server's publication is accepted: until then the old structure is the best there is."""
        member = self._member
        while True:
            await member.ledger.news()
            for master in sorted(self._deposed):
                self._deposed.discard(master)
                if member.signing_key is not None and self._handed_over.pop(master, None) is not None:
                    await self._stop_publishing(member.signing_key.destination.hash)

    async def _stop_publishing(self, master_hash: bytes) -> None:
        try:
            await self._member.router.stop_publishing_meta_lease_set(master_hash)
        except RouterError as error:
            self._member.trace.append("publish-failed", {"reason": f"stopping: {error}"})
