"""The outputs of a `Swim`: the effects of `step(event, now)`, executed in order; and the context that collects them."""

from collections import Counter
from collections.abc import Sequence
from enum import Enum
from random import Random
from typing import Final

from msgspec import Struct

from gossip.core.keyring import Keyring
from gossip.core.member import Address, LocalNode, NodeId, NodeInfo, Status
from gossip.core.membership import Membership
from gossip.core.messages import CountedDrop, DropReason, Message, Query, UserEvent
from gossip.core.options import SwimOptions


class Send(Struct, frozen=True, gc=False):
    """Send a datagram. It may be lost: the protocol retries.

    The seal binds the datagram to `recipient`. None: any node of the farm can open it.
    """

    target: Address
    message: Message
    recipient: NodeId | None
    boxed_for: bytes = b""
    """The recipient's credential, if no common key opens the message: the message is then boxed for its identity."""
    is_limited: bool = False
    """True for a reply to an unproved source address.

    Together, all such replies to one datagram are at most as large as the datagram.
    """


class Announce(Struct, frozen=True):
    """Broadcast this node's presence on the LAN, if the node has a broadcast address."""

    message: Message


class OfferToken(Struct, frozen=True):
    """Answer a JoinReq without a valid token with a JoinNak that carries a token (minted by the wire layer)."""

    target: Address
    applicant: NodeId
    generation: int
    """The generation of the applicant, for the JoinNak."""


class MembershipChanged(Struct, frozen=True):
    """This node's view of another member changed: its description, status, incarnation or equivocation."""

    info: NodeInfo
    status: Status
    previous: Status | None
    equivocates: bool = False
    """True if the change is that the member signed two different descriptions of one incarnation."""


class AdoptGeneration(Struct, frozen=True):
    """Other members have recorded a higher generation of this node: store `generation` before sending anything else."""

    generation: int


class UserEventReceived(Struct, frozen=True):
    """Another node's application sent a user event. Emitted once per event."""

    user_event: UserEvent


class QueryReceived(Struct, frozen=True):
    """Another node's application sent a query; AnswerGiven carries the reply. Emitted once per query."""

    query: Query


class QueryAnswered(Struct, frozen=True):
    """A member replied to our query `ticket`. Emitted once per member."""

    ticket: int
    responder: NodeId
    body: bytes


class QueryEnded(Struct, frozen=True):
    """Our query `ticket` no longer accepts replies."""

    ticket: int


class UseKeyring(Struct, frozen=True):
    """Seal and open with these keys from now on, and store them, so that a restart does not restore old keys."""

    keyring: Keyring


class KeyOffered(Struct, frozen=True):
    """A member at `source` refused this node's key and sent its application's offer instead."""

    source: Address
    offer: bytes


class KeyringUpdateRefused(Struct, frozen=True):
    """A node without permission to distribute keys (`may_send_keys`) sent some. Emitted at a low rate."""

    sender: NodeId
    source: Address


class AlarmKind(Enum):
    """Conditions that an operator must see."""

    IDENTITY_CONFLICT = "identity-conflict"
    """Another live node uses this node's identity: this node stops."""
    ROLLED_BACK = "rolled-back"
    """This node signed a later generation than its state directory has recorded: the directory is an older copy."""
    ISOLATED = "isolated"
    """This node receives no reply from peers or seeds."""
    KEY_RETIRED = "key-retired"
    """The group refuses this node's key, or a node of this farm seals with a key that this node lacks."""
    KEYRING_NOT_STORED = "keyring-not-stored"
    """New keys are in use and could not be stored: after a restart this node would use the old keys."""
    GENERATION_NOT_STORED = "generation-not-stored"
    """This node must begin a later generation but cannot store its number. Until it can, it does not send."""
    EQUIVOCATION = "equivocation"
    """A member signed two different descriptions of one incarnation: different nodes get different descriptions."""
    FORGED_VERDICTS = "forged-verdicts"
    """Many false verdicts: members lose datagrams, or a holder of the group's key forges verdicts."""
    ADMIT_FAILED = "admit-failed"
    """The application's `admit` raised or returned an invalid result: the joiner was refused."""
    FOREIGN_VERSION = "foreign-version"
    """A sender uses another version of the protocol: this node and the sender cannot read each other's datagrams."""


def rolled_back(node_id: NodeId, claimed: int, own: int) -> "Alarm":
    """Return the alarm of a node that signed, at its own address, a later generation than it has recorded."""
    return Alarm(
        AlarmKind.ROLLED_BACK,
        f"gossip from this address has this node's identity {node_id.hex()} and generation {claimed}, but this process"
        f" has generation {own}: the state directory was restored from an older copy",
    )


EQUIVOCATORS_SHOWN: Final = 4


def equivocation(members: Sequence[NodeId]) -> "Alarm":
    """Return the alarm of members that signed two descriptions of one incarnation; it ends if the list is empty."""
    if not members:
        return Alarm(AlarmKind.EQUIVOCATION, "no member shows different nodes different descriptions now", over=True)
    signer_ids = ", ".join(each.hex() for each in members[:EQUIVOCATORS_SHOWN])
    more = f" and {len(members) - EQUIVOCATORS_SHOWN} more" if len(members) > EQUIVOCATORS_SHOWN else ""
    return Alarm(
        AlarmKind.EQUIVOCATION,
        f"{signer_ids}{more} signed different descriptions of one incarnation, so nodes have different descriptions of"
        " the same member: it is hostile, or its state directory is a copy or was restored from one",
    )


class Alarm(Struct, frozen=True):
    """A condition that an operator must see."""

    kind: AlarmKind
    text: str
    over: bool = False
    """True if the condition has ended."""


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
    """The state shared by all parts of one node's core: this node, its members, and the effects of the current step.

    Every output of the core passes through the context and is counted. Counters are keyed by names from closed sets
    (message classes, drop reasons), so that other nodes cannot make them grow.
    """

    def __init__(self, local: LocalNode, members: Membership, options: SwimOptions, random: Random, now: int) -> None:
        self.local = local
        self.members = members
        self.options = options
        self.random = random
        self.now = now
        """The time of the current step."""
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.dropped: Counter[CountedDrop] = Counter()
        self.effects: list[Effect] = []
        self.unproved_sources: tuple[Address, ...] = ()
        """The source and the requester of the current ping; replies to an unproved one of them are limited in size."""

    def send(self, target: Address, message: Message, recipient: NodeId | None, boxed_for: bytes = b"") -> None:
        """Send a message and count it. Without a recipient, any node of the farm can open it."""
        self.sent[type(message).__name__] += 1
        is_limited = target in self.unproved_sources and (target.host, target.port) not in self.members.proved
        self.effects.append(Send(target, message, recipient, boxed_for, is_limited))

    def emit(self, effect: LocalEffect) -> None:
        """Queue an effect other than Send."""
        self.effects.append(effect)

    def drop(self, reason: DropReason) -> None:
        """Count an input without effect."""
        self.dropped[reason] += 1

    def take_effects(self) -> list[Effect]:
        """Return the effects since the last call, in order."""
        effects, self.effects = self.effects, []
        return effects
