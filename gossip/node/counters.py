"""What the agent counts: datagrams in and out, and every drop by its reason.

A datagram that is dropped silently cannot be told from one that was never sent; each way to drop one has a name here.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from gossip.core.description import Description
from gossip.wire.layout import Refusal


class Loss(Enum):
    """Why the agent dropped a datagram before or behind the codec; `Refusal` names the codec's own reasons."""

    OVERSIZE = "oversize"
    RATE_LIMITED = "rate-limited"
    OVERLOADED = "overloaded"
    """Came faster than it was taken: the kernel had no room (where it tells), or the queue of broadcasts."""
    MISPLACED = "misplaced"
    """Came by broadcast and is no Broadcast."""
    SEND_FAILED = "send-failed"
    UNENCODABLE = "unencodable"
    ANSWER_LOST = "answer-lost"
    """A query's answer came and the application read too slowly, or no longer."""
    ADMIT_FAILED = "admit-failed"
    """A join that the application's `admit` failed to decide about: refused."""
    KEYRING_OF_A_STRANGER = "keyring-of-a-stranger"
    """Keyring updates signed by an identity that the application does not let tell keys."""
    WIDE_AREA = "wide-area"
    """Would have gone to a public address, and `allow_wan` is off."""


@dataclass(frozen=True, slots=True)
class WireDescription:
    """The counters at one moment. `dropped` is keyed by the names in `Refusal` and `Loss`."""

    received: int
    received_bytes: int
    sent: int
    sent_bytes: int
    dropped: Mapping[str, int]
    piggyback_left_out: int
    """Updates and samples whose signature did not hold; the messages that carried them were taken."""
    events_lost: int
    resumptions: int = 0
    """How often this process was taken for resumed from a snapshot, and drew a new salt."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """What the core says about itself, and the figures of the wire."""

    core: Description
    wire: WireDescription


@dataclass(slots=True)
class Counters:
    """The running figures of one agent. The keys of `dropped` are enums, so it cannot grow."""

    received: int = 0
    received_bytes: int = 0
    sent: int = 0
    sent_bytes: int = 0
    dropped: Counter[Refusal | Loss] = field(default_factory=Counter)
    piggyback_left_out: int = 0
    events_lost: int = 0
    resumptions: int = 0

    def heard(self, datagram: bytes) -> None:
        """A datagram arrived, whatever becomes of it."""
        self.received += 1
        self.received_bytes += len(datagram)

    def told(self, datagram: bytes) -> None:
        """A datagram went out."""
        self.sent += 1
        self.sent_bytes += len(datagram)

    def drop(self, reason: Refusal | Loss) -> None:
        """A datagram ended here."""
        self.dropped[reason] += 1

    def describe(self, overflowed: int = 0) -> WireDescription:
        """The figures now; `overflowed` datagrams were dropped before anybody here could count them."""
        counts = self.dropped + Counter({Loss.OVERLOADED: overflowed})
        dropped = {reason.value: count for reason, count in sorted(counts.items(), key=lambda item: item[0].value)}
        return WireDescription(
            received=self.received,
            received_bytes=self.received_bytes,
            sent=self.sent,
            sent_bytes=self.sent_bytes,
            dropped=MappingProxyType(dropped),
            piggyback_left_out=self.piggyback_left_out,
            events_lost=self.events_lost,
            resumptions=self.resumptions,
        )
