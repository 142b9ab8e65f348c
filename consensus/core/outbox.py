"""The effects of one step, in order, with at most one Persist, which comes first.

Whatever a step changes durably (hard state, truncation, entries) goes into one numbered Persist, so one fsync covers
it. Its number is known before it is drained: effects that rest on it name it as `after`. Effects that rest on nothing
(an established leader's appends) carry 0 and need not wait although they come later in the list.
"""

from consensus.core.effects import Effect, Persist, Send, SnapshotChange
from consensus.core.messages import Message
from consensus.core.model import Entry, HardState, Index, ServerId


class Outbox:
    """Collects what a step wants done."""

    def __init__(self) -> None:
        self._number = 0
        self._hard_state: HardState | None = None
        self._truncate_from: Index | None = None
        self._first: Index = 0
        self._entries: list[Entry] = []
        self._snapshot: SnapshotChange | None = None
        self._effects: list[Effect] = []

    @property
    def staged_number(self) -> int:
        """The number of the Persist that carries what this step changes durably."""
        return self._number + 1

    @property
    def changes_snapshot(self) -> bool:
        """Whether this step changes the snapshot, and so may change no entries."""
        return self._snapshot is not None

    def stage_hard_state(self, hard_state: HardState) -> int:
        """Make `hard_state` durable; returns the number of the Persist that does."""
        self._hard_state = hard_state
        return self.staged_number

    def stage_log(self, truncate_from: Index | None, first: Index, entries: tuple[Entry, ...]) -> int:
        """Make a change of the log durable; returns the number of the Persist that does.

        Within a step a truncation comes first, and entries only continue those that are staged already.
        """
        if self._entries and truncate_from is None:
            self._entries.extend(entries)
        else:
            self._truncate_from = truncate_from
            self._first = first
            self._entries = list(entries)
        return self.staged_number

    def stage_snapshot(self, change: SnapshotChange) -> int:
        """Make a change of the snapshot durable; a step with one changes no entries. Returns the Persist's number."""
        self._snapshot = change
        return self.staged_number

    def send(self, recipient: ServerId, message: Message, after: int = 0) -> None:
        """Send `message` once Persist `after` is durable."""
        self._effects.append(Send(recipient, message, after))

    def add(self, effect: Effect) -> None:
        """Any other effect."""
        self._effects.append(effect)

    def drain(self) -> list[Effect]:
        """The effects of the step that ends."""
        effects, self._effects = self._effects, []
        if self._hard_state is None and self._truncate_from is None and not self._entries and self._snapshot is None:
            return effects
        self._number += 1
        entries = tuple(self._entries)
        persist = Persist(self._number, self._hard_state, self._truncate_from, self._first, entries, self._snapshot)
        self._snapshot = None
        self._hard_state = None
        self._truncate_from = None
        self._first = 0
        self._entries = []
        return [persist, *effects]
