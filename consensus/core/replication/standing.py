"""What a leader knows of one follower, whichever strategy brought the news."""

from dataclasses import dataclass

from consensus.core.model import Index, Milliseconds


@dataclass(slots=True)
class Standing:
    """One follower. `match` and `round` only rise; all three count towards majorities."""

    contact_ms: Milliseconds
    advanced_ms: Milliseconds = 0
    """When it last got further: `match` rose, or it took a piece of a snapshot."""
    taken: tuple[Index, int] = (0, 0)
    """Of the snapshot that it fetches: its last index, and the offset up to which it holds the bytes."""
    heard: bool = False
    """Whether it sent a word in this term; until then `contact_ms` is when the term's leader took office."""
    match: Index = 0
    round_number: int = 0
    """The newest round of `confirm` in which it answered."""

    def reached(self, index: Index, now: Milliseconds) -> None:
        """It holds our log up to `index`."""
        if index > self.match:
            self.match = index
            self.advanced_ms = now

    def took(self, snapshot: Index, offset: int, now: Milliseconds) -> None:
        """It holds this snapshot up to `offset`; it has not got further if it asks for the same piece again."""
        if offset and (snapshot, offset) != self.taken:
            self.taken = snapshot, offset
            self.advanced_ms = now
