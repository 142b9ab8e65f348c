"""The identity and status of a member, and the precedence of two updates about it.

A node is named by its `NodeId`. Each start of the node has a `generation` (a persisted counter). Within a generation
the node raises `number` to refute a suspicion or to announce new metadata. The pair is its `Incarnation`.

*Precedence* (`_ABOUT_OTHERS`, `_ABOUT_SELF`). Rows are the claimed status, columns the recorded one. The three places
of a cell are for a claimed incarnation that is older than, equal to and newer than the recorded one:

    .  no effect           +  the update replaces the record        c  it confirms the active suspicion
    !  this node refutes it with a higher incarnation

The order is total: (incarnation, status), with left > dead > suspect > alive. So all nodes with the same updates end
with the same record, in any order of arrival. In the original SWIM, death is final, so it does not need this table. But
then the halves of a healed partition could never reunite, because each half has permanently declared the other one
dead.

*This node.* Only a node itself raises its number. If it receives a higher generation of itself, its own record of
starts is probably older than the group's record (a restored backup). It then takes the next higher generation, because
otherwise its updates would not win.
"""

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Final, NamedTuple, NewType

from msgspec import Struct
from msgspec.structs import replace

from gossip.core.options import SwimOptions, TokenBucket

NodeId = NewType("NodeId", bytes)
"""First 8 bytes of the SHA-256 of a node's identity key."""

NODE_ID_BYTES: Final = 8
METADATA_LIMIT_BYTES: Final = 512
CREDENTIAL_LIMIT_BYTES: Final = 128
_INFO_BASE_BYTES: Final = 64
INCARNATION_LIMIT: Final = 1 << 53
"""Generations and numbers from here on are refused: at the end of the scale a false update cannot be refuted."""

LAST_GENERATION: Final = INCARNATION_LIMIT - 2
"""The last generation that a node begins or stores. The node does not refute claims of this or a later generation."""
GENERATION_STEP_LIMIT: Final = 1 << 24
"""The maximum advance of a claimed generation over the last generation that its subject signed.

A larger advance is a forgery, because nodes do not restart that often. To refute it, the subject would have to begin
the generation after the claimed one. Two such forgeries would use up the subject's generations.
"""

NUMBER_STEP_LIMIT: Final = 1 << 10
"""The maximum advance of an unsigned number. A node reaches it by refuting for eight minutes (two per second) while no
refutation arrives. If a member really is further ahead, its next signed description corrects the record."""


class Status(IntEnum):
    """The status of a member; the numeric order is the precedence at equal incarnation."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3


ALIVE, SUSPECT, DEAD, LEFT = Status


class Incarnation(NamedTuple):
    """A start of a member (`generation`), and the number of updates that the member has made since (`number`).

    It is a tuple because each datagram causes three comparisons, and tuples compare without Python code.
    """

    generation: int
    number: int

    def raised(self) -> "Incarnation":
        """Return the next number of the same generation."""
        return Incarnation(self.generation, self.number + 1)


class Address(Struct, frozen=True, order=True, gc=False):
    """A UDP endpoint: numeric host and port."""

    host: str
    port: int


class NodeInfo(Struct, frozen=True, gc=False):
    """A node's description of itself, signed as a whole.

    `capacity` is the number of peers that it is willing to probe. `metadata` is opaque to gossip (at most 512 bytes).
    `credential` is the wire layer's proof of authorship (identity key and signature); the core passes it on unchanged.
    It is empty for the node's own description until the wire signs.
    """

    node_id: NodeId
    address: Address
    incarnation: Incarnation
    capacity: int
    metadata: bytes = b""
    credential: bytes = b""

    def __hash__(self) -> int:
        """Hash the signature, which covers the rest: descriptions are looked up for every datagram."""
        return hash(self.credential or self.node_id)


def is_sound(incarnation: Incarnation) -> bool:
    """Return True if an incarnation leaves room for a refutation."""
    return 0 <= incarnation.generation < INCARNATION_LIMIT and 0 <= incarnation.number < INCARNATION_LIMIT


def is_credible(claimed: Incarnation, signed: Incarnation) -> bool:
    """Return True if an unsigned update about a member may be true, given the member's last signed incarnation."""
    if not is_sound(claimed) or claimed.generation > signed.generation + GENERATION_STEP_LIMIT:
        return False
    last = signed.number if claimed.generation == signed.generation else 0
    return claimed.generation < signed.generation or claimed.number <= last + NUMBER_STEP_LIMIT


def is_plausible(info: NodeInfo) -> bool:
    """Return True if a description is within its limits.

    The wire layer makes the same checks; the core repeats them to protect its own memory.
    """
    generation, number = info.incarnation
    is_sound = 0 <= generation < INCARNATION_LIMIT and 0 <= number < INCARNATION_LIMIT
    return is_sound and info.capacity >= 1 and len(info.metadata) <= METADATA_LIMIT_BYTES


def info_bytes(info: NodeInfo) -> int:
    """Return the approximate size of a description; this node's own is not signed yet and will grow."""
    credential_bytes = len(info.credential) or CREDENTIAL_LIMIT_BYTES
    return _INFO_BASE_BYTES + len(info.address.host) + len(info.metadata) + credential_bytes


def equivocate(one: NodeInfo, other: NodeInfo) -> bool:
    """Return True if a node signed two different descriptions of one incarnation."""
    if one.incarnation != other.incarnation or one == other:
        return False
    return replace(one, credential=b"") != replace(other, credential=b"")


# -- precedence ----------------------------------------------------------------------------------------------------


class UpdateOutcome(Enum):
    """The effect of an update on the receiving node."""

    NOTHING = "."
    REPLACES = "+"
    CONFIRMS = "c"
    REFUTED = "!"


_ABOUT_OTHERS: Final[Mapping[Status, tuple[str, str, str, str]]] = {
    #         known:  alive  suspect  dead   left
    ALIVE:  (          "..+", "..+",  "..+", "..+"),
    SUSPECT: (         ".++", ".c+",  "..+", "..+"),
    DEAD:   (          ".++", ".++",  "..+", "..+"),
    LEFT:   (          ".++", ".++",  ".++", "..+"),
}  # fmt: skip

_ABOUT_SELF: Final[Mapping[Status, str]] = {
    ALIVE:   "..!",
    SUSPECT: ".!!",
    DEAD:    ".!!",
    LEFT:    ".!!",
}  # fmt: skip


def _cell(places: str) -> tuple[UpdateOutcome, UpdateOutcome, UpdateOutcome]:
    older, equal, newer = (UpdateOutcome(place) for place in places)
    return older, equal, newer


ABOUT_OTHERS: Final = tuple(tuple(_cell(places) for places in _ABOUT_OTHERS[claimed]) for claimed in Status)
ABOUT_SELF: Final = tuple(_cell(_ABOUT_SELF[claimed]) for claimed in Status)


def weigh(claimed: Incarnation, status: Status, known: Incarnation, known_status: Status) -> UpdateOutcome:
    """Return the effect of an update about another member."""
    return ABOUT_OTHERS[status][known_status][(claimed >= known) + (claimed > known)]


def weigh_own(claimed: Incarnation, status: Status, own: Incarnation) -> UpdateOutcome:
    """Return the effect of an update about this node itself."""
    return ABOUT_SELF[status][(claimed >= own) + (claimed > own)]


# -- this node -----------------------------------------------------------------------------------------------------


class Awareness:
    """Local health: a score of signs that this node itself is the cause of missed replies (Lifeguard, section IV.A).

    A node without enough processor time handles replies too late, and counts them as missing. The score rises with each
    sign of this: a failed probe without helpers, a helper's missing nack, a standstill, a suspicion to refute. It falls
    with each answered probe. Probe period and timeout are multiplied by score + 1. With a fixed timeout, one overloaded
    node would accuse the members of a healthy group.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.score = 0

    def adjust(self, delta: int) -> None:
        """Count a sign of bad health (positive) or of health (negative)."""
        self.score = min(max(self.score + delta, 0), self._limit - 1)

    def scale(self, duration_ms: int) -> int:
        """Return the duration, scaled for the current health."""
        return duration_ms * (self.score + 1)


class LocalNode:
    """This node's description of itself and its health. It is never suspect or dead; `leaving` is final."""

    def __init__(self, info: NodeInfo, options: SwimOptions) -> None:
        self.info = replace(info, credential=b"")
        self.node_id = info.node_id
        self.leaving = False
        self.awareness = Awareness(options.awareness_max)
        self.refutations = TokenBucket(options.refutations_per_second, 2 * options.refutations_per_second)

    @property
    def incarnation(self) -> Incarnation:
        """The incarnation of this node's current description."""
        return self.info.incarnation

    def raise_above(self, claim: Incarnation) -> None:
        """Renew this node's description with a number above the claim, within this generation."""
        number = max(self.info.incarnation.number, claim.number) + 1
        self.info = replace(self.info, incarnation=Incarnation(self.info.incarnation.generation, number))

    def adopt(self, generation: int) -> None:
        """Begin a later generation."""
        self.info = replace(self.info, incarnation=Incarnation(generation, 0))

    def set_metadata(self, metadata: bytes) -> None:
        """Announce new metadata under a new number."""
        self.info = replace(self.info, metadata=metadata, incarnation=self.info.incarnation.raised())
