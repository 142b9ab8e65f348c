"""Where every claim about a member meets the one precedence rule, and what follows from a claim that wins.

    alive    known: the description is replaced, a suspicion ends        unknown: enters the directory
    suspect  starts a suspicion, or confirms the one that runs           unknown: dropped
    dead     the link ends, a tombstone stays                            unknown: dropped
    left     the same, and only in the member's own name, signed by it   unknown: dropped

A claim that changes the view is told on; one that does not is silence, which is what ends an epidemic. A verdict about
an unknown member must not create it, or members long forgotten would walk from directory to directory. For the same
reason a newcomer is told on only while the directory has room: above its size nobody remembers what he has told.

Claims about this node itself are refuted by raising its own incarnation, at a bounded rate.
"""

from dataclasses import replace

from gossip.core.awareness import Awareness
from gossip.core.dissemination import Dissemination
from gossip.core.effects import AdoptGeneration, MembershipChanged, rolled_back
from gossip.core.local_node import INCARNATION_LIMIT, LocalNode, is_credible, is_plausible, is_sound
from gossip.core.member import Address, Incarnation, NodeId, NodeInfo, Status
from gossip.core.membership import Entry, Membership
from gossip.core.messages import AliveUpdate, Payload, VerdictUpdate
from gossip.core.options import Options
from gossip.core.outbox import DropReason, Outbox
from gossip.core.precedence import Outcome, weigh, weigh_own
from gossip.core.suspicion import Suspicion

_CONFLICT_SUSPECTS_LIMIT = 4


class Updates:
    """Applies claims to the membership and spreads those that win."""

    def __init__(
        self,
        own: LocalNode,
        membership: Membership,
        news: Dissemination,
        awareness: Awareness,
        outbox: Outbox,
        options: Options,
    ) -> None:
        self._local = own
        self._membership = membership
        self._news = news
        self._awareness = awareness
        self._outbox = outbox
        self._options = options
        self._suspicions: dict[NodeId, Suspicion] = {}
        self.conflict_suspects: dict[Address, None] = {}
        """Other addresses at which this node's own id was claimed in a life as late as ours; to be pinged."""

        self.revived: list[Entry] = []
        """Members that a claim of this step brought back from the dead."""

    @property
    def deadline(self) -> int | None:
        """When the next suspicion turns into a death."""
        if not self._suspicions:
            return None
        return min((suspicion.deadline for suspicion in self._suspicions.values()), default=None)

    def expire(self, now: int) -> None:
        """Declare dead those who did not refute in time."""
        for node_id, suspicion in list(self._suspicions.items()):
            if suspicion.deadline <= now:
                self.hear_verdict(VerdictUpdate(node_id, suspicion.incarnation, Status.DEAD, self._local.node_id), now)
                self._suspicions.pop(node_id, None)

    def postpone(self, duration_ms: int) -> None:
        """This node stood still: suspects get that time back."""
        for suspicion in self._suspicions.values():
            suspicion.postpone(duration_ms)

    def hear_payload(self, payload: Payload, now: int) -> None:
        """All that rides on a ping: news, and a sample which is not told on."""
        for update in payload.updates:
            if isinstance(update, AliveUpdate):
                if self._is_worth_hearing(update.info):
                    self.hear_alive(update.info, now)
            else:
                self.hear_verdict(update, now)
        for info in payload.sample:
            self.hear_alive(info, now, tell_on=False)

    def _is_worth_hearing(self, info: NodeInfo) -> bool:
        """In an overlay news of the living changes what is known; it neither introduces nor keeps anybody fresh."""
        if not self._options.overlay or info.node_id == self._local.node_id:
            return True
        known = self._membership.get(info.node_id)
        return known is not None and (known.status is not Status.ALIVE or known.incarnation != info.incarnation)

    def hear_alive(self, info: NodeInfo, now: int, *, tell_on: bool = True) -> Entry | None:
        """A member's own word that it lives. Returns its entry, or None for ourselves and for what is refused."""
        known = self._membership.get(info.node_id)
        if known is not None and known.info is info and known.status is Status.ALIVE:
            # The very description that is held: nearly all samples and most news of a quiet group.
            known.heard_ms = now
            return known
        if not is_plausible(info):
            self._outbox.drop(DropReason.BAD_DESCRIPTION)
            return None
        if info.node_id == self._local.node_id:
            self.hear_of_self(info.incarnation, Status.ALIVE, now, info)
            return None
        entry = self._membership.get(info.node_id)
        if entry is None:
            return self._welcome(info, now, tell_on=tell_on)
        if weigh(info.incarnation, Status.ALIVE, entry.incarnation, entry.status) is Outcome.REPLACES:
            previous = entry.status
            entry.info = info
            self._membership.set_status(entry, info.incarnation, Status.ALIVE, now)
            self._suspicions.pop(info.node_id, None)
            self._outbox.emit(MembershipChanged(info, Status.ALIVE, previous))
            self._news.add(AliveUpdate(info))
            if previous is Status.DEAD:
                self.revived.append(entry)
        elif entry.status is Status.ALIVE and info.incarnation == entry.incarnation:
            entry.heard_ms = now
        return entry

    def _welcome(self, info: NodeInfo, now: int, *, tell_on: bool) -> Entry | None:
        entry, evicted = self._membership.insert(info, now)
        if entry is None:
            return None
        if evicted is not None:
            # Its suspicion would else outlive it, and bury it when it is heard of again.
            self._suspicions.pop(evicted, None)
        self._outbox.emit(MembershipChanged(info, Status.ALIVE, None))
        if tell_on and evicted is None and not self._options.overlay:
            self._news.add(AliveUpdate(info))
        return entry

    def hear_verdict(self, verdict: VerdictUpdate, now: int) -> None:
        """Somebody's verdict about a member."""
        if verdict.status is Status.ALIVE or not is_sound(verdict.incarnation):
            self._outbox.drop(DropReason.BAD_VERDICT)
            return
        if verdict.status is Status.LEFT and verdict.accuser != verdict.node_id:
            self._outbox.drop(DropReason.FORGED_LEFT)
            return
        if verdict.node_id == self._local.node_id:
            self.hear_of_self(verdict.incarnation, verdict.status, now)
            return
        entry = self._membership.get(verdict.node_id)
        if entry is None:
            self._outbox.drop(DropReason.UNKNOWN_SUBJECT)
            return
        if not is_credible(verdict.incarnation, entry.info.incarnation):
            self._outbox.drop(DropReason.BAD_VERDICT)
            return
        outcome = weigh(verdict.incarnation, verdict.status, entry.incarnation, entry.status)
        if outcome is Outcome.REPLACES:
            self._judge(entry, verdict, now)
        elif outcome is Outcome.CONFIRMS and self._suspicions[entry.node_id].confirm(verdict.accuser):
            self._news.add(verdict)

    def _judge(self, entry: Entry, verdict: VerdictUpdate, now: int) -> None:
        previous = entry.status
        self._suspicions.pop(entry.node_id, None)
        self._membership.set_status(entry, verdict.incarnation, verdict.status, now)
        entry.departure = verdict.proof
        if verdict.status is Status.SUSPECT:
            self._suspicions[entry.node_id] = Suspicion(
                verdict.incarnation, verdict.accuser, self._membership.group_size, self._options, now
            )
        self._outbox.emit(MembershipChanged(entry.info, verdict.status, previous))
        self._news.add(verdict)

    def accuse(self, node_id: NodeId, incarnation: Incarnation, now: int) -> None:
        """This node's own verdict after a probe round without an answer."""
        self.hear_verdict(VerdictUpdate(node_id, incarnation, Status.SUSPECT, self._local.node_id), now)

    def hear_of_self(self, incarnation: Incarnation, status: Status, now: int, info: NodeInfo | None = None) -> None:
        """A claim about this node (`info` if it is in our own name): refuted if it would win, at a bounded rate."""
        own = self._local
        if info is None and status is Status.ALIVE and incarnation == own.incarnation:
            return  # what every ping says
        if info is None and not is_credible(incarnation, own.incarnation):
            self._outbox.drop(DropReason.BAD_VERDICT)
            return
        if own.leaving or not is_sound(Incarnation(incarnation.generation + 1, incarnation.number)):
            return
        if info is not None and info.address != own.info.address and incarnation >= own.incarnation:
            self.suspect_conflict(info.address)
        # Other words under our very incarnation: an unfinished life of which the record was lost, or a twin's.
        contradicts = info is not None and incarnation == own.incarnation and replace(info, credential=b"") != own.info
        if not contradicts and weigh_own(incarnation, status, own.incarnation) is Outcome.NOTHING:
            return
        if not own.refutations.take(now):
            self._outbox.drop(DropReason.RATE_LIMITED)
            return
        # A liar's number near the end of the scale would leave no room for further refutations within this life.
        known = own.incarnation.generation
        if incarnation.generation > known or incarnation.number >= INCARNATION_LIMIT // 2:
            own.adopt(incarnation.generation + 1)
            self._outbox.emit(AdoptGeneration(own.incarnation.generation))
            # From elsewhere it is a matter of twins: which of the two is the older is not for the address to say.
            if info is not None and info.address == own.info.address and incarnation.generation > known:
                self._outbox.emit(rolled_back(own.node_id, incarnation.generation, known))
        else:
            own.raise_above(incarnation)
        if status in {Status.SUSPECT, Status.DEAD}:
            self._awareness.adjust(1)
        self.announce_self()

    def suspect_conflict(self, address: Address) -> None:
        """Have an address pinged at which our own id was claimed; only an answer proves a twin."""
        if len(self.conflict_suspects) < _CONFLICT_SUSPECTS_LIMIT:
            self.conflict_suspects[address] = None

    def announce_self(self) -> None:
        """Tell our own present claim."""
        self._news.add(AliveUpdate(self._local.info))

    def forget(self, node_id: NodeId) -> None:
        """A member fell out of the directory."""
        self._suspicions.pop(node_id, None)
        self._news.forget(node_id)
