"""Updates about members: the precedence rule decides which updates take effect.

    alive    known: the description is replaced, a suspicion ends        unknown: enters the directory
    suspect  starts a suspicion, or confirms the active one              unknown: dropped
    dead     the peer link ends, a tombstone stays                       unknown: dropped
    left     as dead, but only with the member's own signature           unknown: dropped

docs/explanation/gossip.md ("Spreading", "Verdicts of other members") explains the rules, and the option
`first_hand_verdicts`. With this option, another node's suspect or dead verdict about an alive member only makes this
node probe the member. An update about a newcomer is passed on only while the directory has room. Otherwise full
directories would send each other dropped members without end. This node refutes updates about itself by raising its own
incarnation, at a bounded rate. An ack may contradict another node's verdict; in a correct group that happens when
datagrams are lost. Contradicted verdicts, implausible ones, and refutations beyond their rate are counted together.
More than `CONTRADICTED_PER_SECOND` raise an alarm, which ends `QUIET_MS` after the last verdict beyond that rate.

*Suspicion.* A suspect has the timeout of the Lifeguard paper (section IV.B) to refute. Each further, independent
accuser makes it less likely that the first accuser itself was at fault. With fewer than k possible further accusers the
timeout is min. Both bounds grow with the logarithm of the group size, as the time of a refutation does.

    timeout = max - (max - min) * log(confirmations + 1) / log(k + 1),   k = multiplier - 2, not below min
"""

from math import log, log10
from typing import Final

from msgspec import Struct, field, structs
from msgspec.structs import replace

from gossip.core.dissemination import UpdateQueue
from gossip.core.effects import AdoptGeneration, Alarm, AlarmKind, Context, MembershipChanged, equivocation, rolled_back
from gossip.core.member import (
    INCARNATION_LIMIT,
    LAST_GENERATION,
    Address,
    Incarnation,
    NodeId,
    NodeInfo,
    Status,
    UpdateOutcome,
    equivocate,
    info_bytes,
    is_credible,
    is_plausible,
    is_sound,
    weigh,
    weigh_own,
)
from gossip.core.membership import MemberRecord
from gossip.core.messages import AliveUpdate, DropReason, Payload, VerdictUpdate
from gossip.core.options import SwimOptions, TokenBucket

DOUBTS_LIMIT: Final = 8
"""The number of members that this node may probe at a time because of other nodes' verdicts.

Verdicts beyond it are dropped; their senders repeat them.
"""
DOUBTS_PER_SECOND: Final = 16
CONTRADICTED_PER_SECOND: Final = 0.5
CONTRADICTED_BURST: Final = 20
QUIET_MS: Final = 300_000
SHOWN: Final = 4
"""The number of members, and of addresses, named in the alarm."""
_CONFLICT_SUSPECTS_LIMIT: Final = 4
_EQUIVOCATORS_LIMIT: Final = 64


class Suspicion:
    """One suspicion against one incarnation of a member."""

    def __init__(
        self, incarnation: Incarnation, accuser: NodeId, group_size: int, options: SwimOptions, now: int
    ) -> None:
        self.incarnation = incarnation
        self._started_at = now
        self._accusers = {accuser}
        shrinks = options.suspicion_max_multiplier > 1 and not options.overlay
        confirmations = max(options.suspicion_multiplier - 2, 0) if shrinks else 0
        self._confirmations_needed = confirmations if group_size - 2 >= confirmations else 0
        scale = max(1.0, log10(max(group_size, 1)))
        self._min_ms = round(options.suspicion_multiplier * scale * options.probe_period_ms)
        self._max_ms = self._min_ms * options.suspicion_max_multiplier
        self.deadline = self._deadline()
        """The time when the suspect is declared dead, with the current accusers."""

    def confirm(self, accuser: NodeId) -> bool:
        """Count an accuser; return True if the accuser is new and still shortens the suspicion."""
        if accuser in self._accusers or len(self._accusers) > self._confirmations_needed:
            return False
        self._accusers.add(accuser)
        self.deadline = self._deadline()
        return True

    def postpone(self, duration_ms: int) -> None:
        """Exclude a period without reception, because a refutation could not have arrived then."""
        self._started_at += duration_ms
        self.deadline = self._deadline()

    def _deadline(self) -> int:
        if self._confirmations_needed == 0:
            return self._started_at + self._min_ms
        shrunk = (self._max_ms - self._min_ms) * log(len(self._accusers)) / log(self._confirmations_needed + 1)
        return self._started_at + max(self._max_ms - round(shrunk), self._min_ms)


class _Doubt(Struct):
    sources: dict[Address, None] = field(default_factory=dict)
    verdicts: int = 0

    def add(self, source: Address | None) -> None:
        self.verdicts += 1
        if source is not None and len(self.sources) < SHOWN:
            self.sources[source] = None


class Doubts:
    """The members in doubt because of another node's verdict, and the verdicts that proved false."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._open: dict[NodeId, _Doubt] = {}
        self.unprobed: list[NodeId] = []
        """The members to probe because of another node's verdict."""
        self._probes = TokenBucket(DOUBTS_PER_SECOND, 2 * DOUBTS_PER_SECOND)
        self._tolerated = TokenBucket(CONTRADICTED_PER_SECOND, CONTRADICTED_BURST)
        self._false = _Doubt()
        self._subjects: dict[NodeId, None] = {}
        self._quiet_at: int | None = None

    def take_unprobed(self) -> list[NodeId]:
        """Return `unprobed`, and empty it."""
        unprobed, self.unprobed = self.unprobed, []
        return unprobed

    def add(self, subject: NodeId, source: Address | None) -> None:
        """Record another node's verdict that would change this node's view."""
        doubt = self._open.get(subject)
        if doubt is None:
            if len(self._open) >= DOUBTS_LIMIT or not self._probes.take(self._context.now):
                self._context.drop(DropReason.RATE_LIMITED)
                return
            doubt = self._open[subject] = _Doubt()
            self.unprobed.append(subject)
        doubt.add(source)

    def settle(self, subject: NodeId) -> None:
        """End the doubt about a member without counting its verdicts: it did not reply, or is no longer probed."""
        self._open.pop(subject, None)

    def contradict(self, subject: NodeId) -> None:
        """Count the verdicts against a doubted member as contradicted, because the member has replied."""
        doubt = self._open.pop(subject, None)
        if doubt is None:
            return
        for _ in range(doubt.verdicts):
            self._context.drop(DropReason.CONTRADICTED_VERDICT)
            self._count(subject, next(iter(doubt.sources), None))

    def reject(self, reason: DropReason, subject: NodeId, source: Address | None) -> None:
        """Drop a claim about a member or this node; count it as a false verdict only if its source is known."""
        self._context.drop(reason)
        if source is not None:
            self._count(subject, source)

    def _count(self, subject: NodeId, source: Address | None) -> None:
        now = self._context.now
        self._false.add(source)
        if len(self._subjects) < SHOWN:
            self._subjects[subject] = None
        if self._tolerated.take(now):
            return
        if self._quiet_at is None:
            self._context.emit(Alarm(AlarmKind.FORGED_VERDICTS, self._text()))
        self._quiet_at = now + QUIET_MS

    def _text(self) -> str:
        subjects = ", ".join(each.hex() for each in self._subjects)
        sources = ", ".join(f"{each.host}:{each.port}" for each in self._false.sources)
        return (
            f"{self._false.verdicts} verdicts (suspect or dead) against {subjects} were false: the members answer, or"
            f" did not sign the claims. The verdicts came from {sources}. Members lose datagrams, or a holder of the"
            " group's key forges verdicts. This node ignores them"
        )

    def expire(self) -> None:
        """End the alarm `QUIET_MS` after the last false verdict beyond the tolerated rate."""
        if self._quiet_at is not None and self._quiet_at <= self._context.now:
            self._quiet_at, self._false = None, _Doubt()
            self._subjects.clear()
            self._context.emit(Alarm(AlarmKind.FORGED_VERDICTS, "no more false verdicts are received", over=True))


class Updates:
    """The rule that applies updates to the membership and queues the winning ones."""

    def __init__(self, context: Context, queue: UpdateQueue) -> None:
        self._context = context
        self._local = context.local
        self._members = context.members
        self._queue = queue
        self._suspicions: dict[NodeId, Suspicion] = {}
        self._equivocators: list[NodeId] = []
        self.doubts = Doubts(context)
        self.conflict_suspects: dict[Address, None] = {}
        """Other addresses that claimed this node's own id; to be pinged."""

    @property
    def deadline(self) -> int | None:
        """The time when the next suspect is declared dead."""
        if not self._suspicions:
            return None
        return min(suspicion.deadline for suspicion in self._suspicions.values())

    def expire(self) -> None:
        """Declare dead the members that did not refute in time."""
        for node_id, suspicion in list(self._suspicions.items()):
            if suspicion.deadline <= self._context.now:
                self.apply_verdict(VerdictUpdate(node_id, suspicion.incarnation, Status.DEAD, self._local.node_id))
                self._suspicions.pop(node_id, None)

    def postpone(self, duration_ms: int) -> None:
        """Extend the timeouts of suspects by this node's standstill."""
        for suspicion in self._suspicions.values():
            suspicion.postpone(duration_ms)

    def apply(self, payload: Payload, source: Address) -> None:
        """Apply the updates of a payload and its sample. Do not gossip the sample further."""
        for update in payload.updates:
            if not isinstance(update, AliveUpdate):
                self.apply_verdict(update, source)
            elif not self._context.options.overlay or self._is_change(update.info):
                self.apply_alive(update.info)
        for info in payload.sample:
            self.apply_alive(info, further=False)

    def _is_change(self, info: NodeInfo) -> bool:
        """Return True if the update is about this node or changes a known member.

        In an overlay, updates may not add or refresh members.
        """
        if info.node_id == self._local.node_id:
            return True
        known = self._members.get(info.node_id)
        return known is not None and (known.status is not Status.ALIVE or known.incarnation != info.incarnation)

    def apply_alive(self, info: NodeInfo, *, further: bool = True) -> MemberRecord | None:
        """Apply a member's own signed description. Return its entry; None for this node or if refused."""
        now = self._context.now
        entry = self._members.get(info.node_id)
        if entry is not None and entry.info is info and entry.status is Status.ALIVE:
            # The stored description itself: nearly all samples and most updates of an idle group.
            entry.mentioned_ms = now
            return entry
        if not is_plausible(info):
            self._context.drop(DropReason.BAD_DESCRIPTION)
            return None
        if info.node_id == self._local.node_id:
            self.apply_own(info.incarnation, Status.ALIVE, info)
            return None
        if entry is None:
            return self._add(info, further=further)
        if weigh(info.incarnation, Status.ALIVE, entry.incarnation, entry.status) is UpdateOutcome.REPLACES:
            previous = entry.status
            if info.incarnation.generation > entry.info.incarnation.generation:
                # The member signed a later generation: it has restarted, so its earlier signatures do not matter now.
                entry.equivocates = False
                self._equivocation_is_over(entry.node_id)
            entry.info, entry.size_bytes = info, info_bytes(info)
            self._members.set_status(entry, info.incarnation, Status.ALIVE, now)
            self._suspicions.pop(info.node_id, None)
            self._context.emit(MembershipChanged(info, Status.ALIVE, previous, entry.equivocates))
            self._queue.add_alive(info, entry.size_bytes)
        elif equivocate(info, entry.info):
            self._note_equivocation(entry)
        elif entry.status is Status.ALIVE and info.incarnation == entry.incarnation:
            entry.mentioned_ms = now
        return entry

    def _note_equivocation(self, entry: MemberRecord) -> None:
        """Record that a member signed two different descriptions; both signatures are valid."""
        if entry.equivocates:
            return
        entry.equivocates = True
        if len(self._equivocators) < _EQUIVOCATORS_LIMIT:
            self._equivocators.append(entry.node_id)
        self._context.emit(MembershipChanged(entry.info, entry.status, entry.status, equivocates=True))
        self._context.emit(equivocation(self._equivocators))

    def _equivocation_is_over(self, node_id: NodeId) -> None:
        if node_id in self._equivocators:
            self._equivocators.remove(node_id)
            self._context.emit(equivocation(self._equivocators))

    def _add(self, info: NodeInfo, *, further: bool) -> MemberRecord | None:
        entry, evicted = self._members.insert(info, self._context.now)
        if entry is None:
            return None
        if evicted is not None:
            # Otherwise the suspicion of the evicted member would remain. If the member returned to the directory, the
            # suspicion would declare it dead.
            self._suspicions.pop(evicted, None)
            self._equivocation_is_over(evicted)
        self._context.emit(MembershipChanged(info, Status.ALIVE, None))
        if further and evicted is None and not self._context.options.overlay:
            self._queue.add_alive(info, entry.size_bytes)
        return entry

    def apply_verdict(self, verdict: VerdictUpdate, source: Address | None = None) -> None:
        """Apply a verdict about a member: this node's own, or another node's from `source`."""
        reason = self._refusal(verdict)
        if reason is not None:
            self._context.drop(reason)
            return
        if verdict.node_id == self._local.node_id:
            self.apply_own(verdict.incarnation, verdict.status, source=source)
            return
        entry = self._members.get(verdict.node_id)
        if entry is None:
            self._context.drop(DropReason.UNKNOWN_SUBJECT)
        elif not is_credible(verdict.incarnation, entry.info.incarnation):
            self.doubts.reject(DropReason.BAD_VERDICT, entry.node_id, source)
        else:
            outcome = weigh(verdict.incarnation, verdict.status, entry.incarnation, entry.status)
            is_from_another = source is not None and self._context.options.first_hand_verdicts
            if is_from_another and outcome is not UpdateOutcome.NOTHING and verdict.status is not Status.LEFT:
                self._doubt(entry, verdict, source)
            elif outcome is UpdateOutcome.REPLACES:
                self._replace(entry, verdict)
            elif outcome is UpdateOutcome.CONFIRMS and self._suspicions[entry.node_id].confirm(verdict.accuser):
                self._queue.add_verdict(verdict)

    def _doubt(self, entry: MemberRecord, verdict: VerdictUpdate, source: Address | None) -> None:
        """Handle another node's verdict if only first-hand ones count."""
        suspicion = self._suspicions.get(entry.node_id)
        if suspicion is not None:
            if verdict.incarnation == entry.incarnation and suspicion.confirm(verdict.accuser):
                self._queue.add_verdict(structs.replace(verdict, status=Status.SUSPECT))
        elif entry.status is Status.ALIVE:
            self.doubts.add(entry.node_id, source)

    @staticmethod
    def _refusal(verdict: VerdictUpdate) -> DropReason | None:
        if verdict.status is Status.ALIVE or not is_sound(verdict.incarnation):
            return DropReason.BAD_VERDICT
        is_forged = verdict.status is Status.LEFT and verdict.accuser != verdict.node_id
        return DropReason.FORGED_LEFT if is_forged else None

    def _replace(self, entry: MemberRecord, verdict: VerdictUpdate) -> None:
        previous, now = entry.status, self._context.now
        self._suspicions.pop(entry.node_id, None)
        self._members.set_status(entry, verdict.incarnation, verdict.status, now)
        entry.departure = verdict.proof
        if verdict.status is Status.SUSPECT:
            size, options = self._members.group_size, self._context.options
            self._suspicions[entry.node_id] = Suspicion(verdict.incarnation, verdict.accuser, size, options, now)
        self._context.emit(MembershipChanged(entry.info, verdict.status, previous, entry.equivocates))
        self._queue.add_verdict(verdict)

    def accuse(self, node_id: NodeId, incarnation: Incarnation) -> None:
        """Apply this node's own verdict after a probe round without an ack."""
        self.apply_verdict(VerdictUpdate(node_id, incarnation, Status.SUSPECT, self._local.node_id))

    def apply_own(
        self,
        incarnation: Incarnation,
        status: Status,
        info: NodeInfo | None = None,
        *,
        source: Address | None = None,
    ) -> None:
        """Refute an update about this node if it would win, at a bounded rate; `info` is signed by this node's key."""
        local = self._local
        own = local.info.incarnation
        if info is None and status is Status.ALIVE and incarnation == own:
            return  # every ping names this incarnation
        if info is None and not is_credible(incarnation, own):
            self.doubts.reject(DropReason.BAD_VERDICT, local.node_id, source)
            return
        if local.leaving or incarnation.generation >= LAST_GENERATION or not is_sound(incarnation):
            return
        if info is not None and info.address != local.info.address and incarnation >= own:
            self.suspect_conflict(info.address)
        # Another description with this same incarnation exists: this node started with an old record, or another
        # instance runs.
        contradicts = info is not None and incarnation == own and replace(info, credential=b"") != local.info
        if not contradicts and weigh_own(incarnation, status, own) is UpdateOutcome.NOTHING:
            return
        if not local.refutations.take(self._context.now):
            self.doubts.reject(DropReason.RATE_LIMITED, local.node_id, source)
            return
        # A forged number near the limit would prevent further refutations in this generation.
        if incarnation.generation > own.generation or incarnation.number >= INCARNATION_LIMIT // 2:
            local.adopt(incarnation.generation + 1)
            self._context.emit(AdoptGeneration(local.info.incarnation.generation))
            # A description from another address is an identity conflict: it does not show which instance is older.
            if info is not None and info.address == local.info.address and incarnation.generation > own.generation:
                self._context.emit(rolled_back(local.node_id, incarnation.generation, own.generation))
        else:
            local.raise_above(incarnation)
        if status in {Status.SUSPECT, Status.DEAD}:
            local.awareness.adjust(1)
        self.announce_self()

    def suspect_conflict(self, address: Address) -> None:
        """Schedule a ping to an address that claimed this node's id; only an ack proves an identity conflict."""
        if len(self.conflict_suspects) < _CONFLICT_SUSPECTS_LIMIT:
            self.conflict_suspects[address] = None

    def announce_self(self) -> None:
        """Gossip this node's current description."""
        self._queue.add_alive(self._local.info, info_bytes(self._local.info))

    def forget(self, node_id: NodeId) -> None:
        """Drop the state of a member that left the directory."""
        self.doubts.settle(node_id)
        self._suspicions.pop(node_id, None)
        self._equivocation_is_over(node_id)
        self._queue.forget(node_id)
