"""What a `Swim` wants done: the outputs of `step(event, now)`, carried out in order; and the context that has them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

from gossip.core.keyring import Keyring
from gossip.core.member import Address, LocalNode, NodeId, NodeInfo, Status
from gossip.core.membership import Membership
from gossip.core.messages import CountedDrop, DropReason, Message, Query, UserEvent
from gossip.core.options import SwimOptions


@dataclass(frozen=True, slots=True)
class Send:
    """Send a datagram. Dropping it is allowed: the protocol retries by itself.

    `recipient` is the node that it is for: the seal binds it. None: the node that lives at the address.
    """

    target: Address
    message: Message
    recipient: NodeId | None
    boxed_for: bytes = b""
    """The recipient's credential, if it can open none of our keys: the message is then boxed for its identity."""
    is_limited: bool = False
    """It answers a datagram whose source address is not proved: all such answers together are no larger."""


@dataclass(frozen=True, slots=True)
class Announce:
    """Broadcast presence on the LAN, if the node has a broadcast address."""

    message: Message


@dataclass(frozen=True, slots=True)
class OfferToken:
    """Answer a JoinReq that has no valid token with a JoinNak that carries one (the wire floor mints it)."""

    target: Address
    applicant: NodeId
    generation: int
    """The applicant's, for the nak."""


@dataclass(frozen=True, slots=True)
class MembershipChanged:
    """The status, metadata or incarnation of a member changed in this node's view (never sent for this node itself)."""

    info: NodeInfo
    status: Status
    previous: Status | None
    equivocates: bool = False
    """The member signed two different descriptions of one incarnation."""


@dataclass(frozen=True, slots=True)
class AdoptGeneration:
    """Other members know a higher generation of this node: store `generation` before anything else is sent."""

    generation: int


@dataclass(frozen=True, slots=True)
class UserEventReceived:
    """An application elsewhere sent a user event. Emitted once per event."""

    user_event: UserEvent


@dataclass(frozen=True, slots=True)
class QueryReceived:
    """An application elsewhere asks; AnswerGiven answers. Emitted once per query."""

    query: Query


@dataclass(frozen=True, slots=True)
class QueryAnswered:
    """A member answered our query `ticket`; each member does so once."""

    ticket: int
    responder: NodeId
    body: bytes


@dataclass(frozen=True, slots=True)
class QueryEnded:
    """Our query `ticket` takes no answers any more."""

    ticket: int


@dataclass(frozen=True, slots=True)
class UseKeyring:
    """Seal and open with these keys from now on, and store them: a restart must not bring old ones back."""

    keyring: Keyring


@dataclass(frozen=True, slots=True)
class KeyOffered:
    """A member at `source` refuses this node's key, and sent what its application offers instead."""

    source: Address
    offer: bytes


@dataclass(frozen=True, slots=True)
class KeyringUpdateRefused:
    """A node sent keys that the application does not trust with keys (`may_tell_keys`). Emitted at a low rate."""

    teller: NodeId
    source: Address


class AlarmKind(Enum):
    """Conditions that an operator must see."""

    IDENTITY_CONFLICT = "identity-conflict"
    """Another live node uses this node's identity: this node stops."""
    ROLLED_BACK = "rolled-back"
    """This node signed a later generation than its state directory knows: the directory is an older copy."""
    ISOLATED = "isolated"
    """No peer answers and every seed is silent."""
    KEY_RETIRED = "key-retired"
    """The group refuses this node's key: it was rotated out while the node was away."""
    KEYRING_NOT_STORED = "keyring-not-stored"
    """New keys are in use and could not be stored: after a restart this node would come with old ones."""
    GENERATION_NOT_STORED = "generation-not-stored"
    """This node must begin a later generation and cannot store its number: it is mute until it can."""
    EQUIVOCATION = "equivocation"
    """A member signed two different descriptions of one incarnation: it shows different nodes different things."""
    FORGED_VERDICTS = "forged-verdicts"
    """Many verdicts against members that answer: a holder of the group's key invents them."""
    ADMIT_FAILED = "admit-failed"
    """The application's `admit` raised or returned no answer: the joiner was refused."""
    FOREIGN_VERSION = "foreign-version"
    """Another node of the group uses another version of the protocol: neither can read the other."""


def rolled_back(node_id: NodeId, heard: int, own: int) -> "Alarm":
    """The alarm of a node that signed, at its own address, a later generation than it knows."""
    return Alarm(
        AlarmKind.ROLLED_BACK,
        f"gossip has this node's identity {node_id.hex()} with generation {heard} from this address, and this is"
        f" generation {own}: the state directory was restored from an older copy",
    )


EQUIVOCATORS_SHOWN: Final = 4


def equivocation(members: Sequence[NodeId]) -> "Alarm":
    """The alarm of members that signed two different descriptions of one incarnation; over if there are none."""
    if not members:
        return Alarm(AlarmKind.EQUIVOCATION, "no member shows different nodes different descriptions now", over=True)
    shown = ", ".join(each.hex() for each in members[:EQUIVOCATORS_SHOWN])
    more = f" and {len(members) - EQUIVOCATORS_SHOWN} more" if len(members) > EQUIVOCATORS_SHOWN else ""
    return Alarm(
        AlarmKind.EQUIVOCATION,
        f"{shown}{more} signed different descriptions of one incarnation, so different nodes see different things of"
        " it: it is false, or its state directory is a copy or was restored from one",
    )


@dataclass(frozen=True, slots=True)
class Alarm:
    """A condition that an operator must see."""

    kind: AlarmKind
    text: str
    over: bool = False
    """The condition has passed by itself."""


LocalEffect = (
    Announce
    | OfferToken
    | MembershipChanged
    | AdoptGeneration
    | Alarm
    | UserEventReceived
    | QueryReceived
    | QueryAnswered
    | QueryEnded
    | UseKeyring
    | KeyOffered
)
Effect = Send | LocalEffect


class Context:
    """What all parts of one node's core share: this node, its members, and what the step under way brings about.

    Everything that leaves the core passes here and is counted. Counters are keyed by names from closed sets (message
    classes, drop reasons), so that no stranger can make them grow.
    """

    def __init__(self, local: LocalNode, members: Membership, options: SwimOptions, random: Random, now: int) -> None:
        self.local = local
        self.members = members
        self.options = options
        self.random = random
        self.now = now
        """The time of the step under way."""
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.dropped: Counter[CountedDrop] = Counter()
        self.effects: list[Effect] = []
        self.asked_from: tuple[Address, ...] = ()
        """The addresses that the datagram under way may be from, which nothing proves."""

    def send(self, target: Address, message: Message, recipient: NodeId | None, boxed_for: bytes = b"") -> None:
        """Send a message and count it. No recipient: the node that lives at the address."""
        self.sent[type(message).__name__] += 1
        is_limited = target in self.asked_from and (target.host, target.port) not in self.members.proved
        self.effects.append(Send(target, message, recipient, boxed_for, is_limited))

    def emit(self, effect: LocalEffect) -> None:
        """Add any other effect."""
        self.effects.append(effect)

    def drop(self, reason: DropReason) -> None:
        """Count something that changed nothing."""
        self.dropped[reason] += 1

    def take_effects(self) -> list[Effect]:
        """The effects since the last call, in order."""
        effects, self.effects = self.effects, []
        return effects
