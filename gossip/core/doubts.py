"""Verdicts of others as reasons to ask the member itself (`first_hand_verdicts`).

    verdict of another node ──▶ doubt ──▶ probe of this node ──▶ no answer: this node's own suspicion
                                                            └──▶ an answer: contradicted, counted

A verdict is not signed by its subject, and any holder of the group's key can send one in any node's name. In SWIM it
counts like an observation: with a few datagrams a second a stranger keeps a living member dead in the view of all,
since each false verdict costs the member a refutation. Signed verdicts would leave that to each member that was ever
admitted, and cost 96 bytes each. So in a group with strangers a node accepts its own verdicts only: another node's
verdict makes it probe the member at once, with helpers. A dead member is found as fast as by a verdict, plus one
period. Once this node suspects a member itself, others' verdicts shorten the suspicion as in SWIM.

Verdicts that an answer contradicts happen in an honest group too, when datagrams are lost. More than
`CONTRADICTED_PER_SECOND` of them, and refutations beyond their rate, are an alarm. It ends `QUIET_MS` after the last.
"""

from dataclasses import dataclass, field
from typing import Final

from gossip.core.effects import Alarm, AlarmKind, Context, DropReason
from gossip.core.member import Address, NodeId
from gossip.core.options import TokenBucket

DOUBTS_LIMIT: Final = 8
"""So many members are probed at once because of others' verdicts; further verdicts come again."""
DOUBTS_PER_SECOND: Final = 16
CONTRADICTED_PER_SECOND: Final = 0.5
CONTRADICTED_BURST: Final = 20
QUIET_MS: Final = 300_000
SHOWN: Final = 4
"""So many members, and so many addresses, are named in the alarm."""


@dataclass(slots=True)
class _Doubt:
    sources: dict[Address, None] = field(default_factory=dict)
    verdicts: int = 0

    def add(self, source: Address | None) -> None:
        """Count a verdict, and note who sent it."""
        self.verdicts += 1
        if source is not None and len(self.sources) < SHOWN:
            self.sources[source] = None


class Doubts:
    """The members that are doubted on others' word, and the verdicts that turned out false."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._open: dict[NodeId, _Doubt] = {}
        self.unasked: list[NodeId] = []
        """The members that are to be probed because of others' verdicts."""
        self._probes = TokenBucket(DOUBTS_PER_SECOND, 2 * DOUBTS_PER_SECOND)
        self._tolerated = TokenBucket(CONTRADICTED_PER_SECOND, CONTRADICTED_BURST)
        self._false = _Doubt()
        self._subjects: dict[NodeId, None] = {}
        self._quiet_at: int | None = None

    def take_unasked(self) -> list[NodeId]:
        """Return `unasked`, and empty it."""
        unasked, self.unasked = self.unasked, []
        return unasked

    def add(self, subject: NodeId, source: Address | None) -> None:
        """Note another node's verdict that would change this node's view."""
        doubt = self._open.get(subject)
        if doubt is None:
            if len(self._open) >= DOUBTS_LIMIT or not self._probes.take(self._context.now):
                self._context.drop(DropReason.RATE_LIMITED)
                return
            doubt = self._open[subject] = _Doubt()
            self.unasked.append(subject)
        doubt.add(source)

    def settle(self, subject: NodeId) -> None:
        """The member did not answer: this node has a verdict of its own now."""
        self._open.pop(subject, None)

    def contradict(self, subject: NodeId) -> None:
        """The member answered."""
        doubt = self._open.pop(subject, None)
        if doubt is None:
            return
        for _ in range(doubt.verdicts):
            self._context.drop(DropReason.CONTRADICTED_VERDICT)
            self._count(subject, next(iter(doubt.sources), None))

    def reject(self, reason: DropReason, subject: NodeId, source: Address | None) -> None:
        """Drop a claim about a member or this node; without a source it is no verdict."""
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
            f" never signed what is claimed of them. They came from {sources}. Members lose datagrams, or a holder of"
            " the group's key invents verdicts. They have no effect on this node"
        )

    def expire(self) -> None:
        """End the alarm some time after the last false verdict."""
        if self._quiet_at is not None and self._quiet_at <= self._context.now:
            self._quiet_at, self._false = None, _Doubt()
            self._subjects.clear()
            self._context.emit(Alarm(AlarmKind.FORGED_VERDICTS, "no more false verdicts are received", over=True))
