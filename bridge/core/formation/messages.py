"""What can happen to a `Formation` (events) and what it wants done (effects).

`Persist` effects are numbered; one is under way at a time and its completion comes back as `Persisted`. Whatever rests
on it (the notice that shows a promise, the start of Raft) is an effect of that event, so the shell needs no ordering
of its own.
"""

from dataclasses import dataclass
from enum import Enum

from bridge.core.formation.founding import FormationNotice, FormationState, Founding


@dataclass(frozen=True, slots=True)
class Member:
    """Another node as gossip shows it: `notice` is from its own signed metadata; `eligible` if it may found at all."""

    node_id: bytes
    reachable: bool
    notice: FormationNotice
    eligible: bool = True
    name: str = ""
    """What its metadata calls it; anybody may choose any name."""

    @property
    def shown(self) -> str:
        """How an operator finds it."""
        return self.name or self.node_id.hex()


@dataclass(frozen=True, slots=True)
class Started:
    """The first event of a life: repeats what is durable as `Advertise` and, if so, `Founded` or `KnowsCluster`."""


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """The whole picture of the other members, alive or not, each with the latest notice heard."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """`core.deadline` has come."""


@dataclass(frozen=True, slots=True)
class Persisted:
    """Persist `number` is durable."""

    number: int


@dataclass(frozen=True, slots=True)
class WithdrawRequested:
    """An operator takes back this node's promise; refused once a founding may exist."""


@dataclass(frozen=True, slots=True)
class ConfirmRequested:
    """An operator says that this cluster is this node's farm; refused if that cannot be."""

    cluster_id: bytes


Event = Started | MembersChanged | DeadlineReached | Persisted | WithdrawRequested | ConfirmRequested


@dataclass(frozen=True, slots=True)
class Persist:
    """Make `state` durable in place of what was, then answer `Persisted(number)`."""

    number: int
    state: FormationState


@dataclass(frozen=True, slots=True)
class Advertise:
    """Put `notice` into this node's signed gossip metadata, in place of what was."""

    notice: FormationNotice


@dataclass(frozen=True, slots=True)
class Founded:
    """This node is founder `raft_id`: start Raft with the founding's configuration (again after each restart)."""

    founding: Founding
    raft_id: int


@dataclass(frozen=True, slots=True)
class KnowsCluster:
    """Others founded the farm: this node is an observer until it is added."""

    founding: Founding


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that an operator must see, in words."""

    text: str


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """What an operator asked for is not done; the text says why."""

    text: str


Effect = Persist | Advertise | Founded | KnowsCluster | Alarm | RequestRefused


class Phase(Enum):
    """Where a node stands in formation."""

    WATCHING = "watching"
    PROMISED = "promised"
    FOUNDED = "founded"
    OBSERVER = "observer"
