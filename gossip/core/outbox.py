"""The effects of one step, and the counters of everything sent, received and dropped.

Counters are keyed by names from closed sets (message classes, drop reasons), so that no stranger can make them grow.
"""

from collections import Counter
from enum import Enum

from gossip.core.effects import Effect, Send
from gossip.core.member import Address, NodeId
from gossip.core.messages import Message


class DropReason(Enum):
    """Why a message or a part of it changed nothing."""

    BAD_DESCRIPTION = "bad-description"
    UNKNOWN_SUBJECT = "unknown-subject"
    BAD_VERDICT = "bad-verdict"
    FORGED_LEFT = "forged-left"
    NOT_THE_TARGET = "not-the-target"
    RELAY_TABLE_FULL = "relay-table-full"
    RELAY_REPEATED = "relay-repeated"
    UNMATCHED_RESPONSE = "unmatched-response"
    UNSOLICITED = "unsolicited"
    RATE_LIMITED = "rate-limited"
    LEAVING = "leaving"
    STALE_JOIN = "stale-join"
    FORMER_LIFE = "former-life"
    OWN_MESSAGE = "own-message"
    DIRECTORY_FULL = "directory-full"
    SEEDS_FULL = "seeds-full"
    MAINTENANCE = "maintenance"
    BAD_USER_MESSAGE = "bad-user-message"
    USER_MESSAGE_BEFORE_JOIN = "user-message-before-join"
    QUERIES_FULL = "queries-full"
    ANSWER_TOO_LATE = "answer-too-late"
    ANSWER_REPEATED = "answer-repeated"
    BAD_KEYRING = "bad-keyring"
    OTHER_ERA = "other-era"
    KEYRING_WOULD_SPLIT = "keyring-would-split"
    """Keys of which none opens what this node opens now: it would not hear the others any more."""


class Outbox:
    """Collects effects in order; everything that leaves the core passes here and is counted."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()

    def send(self, target: Address, message: Message, recipient: NodeId | None) -> None:
        """Send a message and count it. No recipient: whoever lives at the address."""
        self.sent[type(message).__name__] += 1
        self._effects.append(Send(target, message, recipient))

    def send_boxed(self, target: Address, message: Message, recipient: NodeId, credential: bytes) -> None:
        """Send a message in a box for the identity of this credential, and count it."""
        self.sent[type(message).__name__] += 1
        self._effects.append(Send(target, message, recipient, credential))

    def emit(self, effect: Effect) -> None:
        """Any other effect."""
        self._effects.append(effect)

    def drop(self, reason: DropReason) -> None:
        """Count something that changed nothing."""
        self.dropped[reason.value] += 1

    def drain(self) -> list[Effect]:
        """The effects since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects
