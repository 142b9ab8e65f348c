"""The events and effects of `Formation`.

`Persist` effects are numbered; one is in progress at a time, and its completion arrives as `Persisted`. Effects that
depend on it (the notice with the promise, the start of Raft) are effects of that event, so the shell need not order
them.
"""

from dataclasses import dataclass
from enum import Enum

from bridge.core.formation.founding import FormationNotice, FormationState, Founding
from bridge.core.formation.member import FarmMember


@dataclass(frozen=True, slots=True)
class Started:
    """The first event of a run. Its effects repeat the durable state: `Advertise`, and `Founded` or `KnowsCluster`."""


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """All other members, alive or not, each with its latest notice."""

    members: tuple[FarmMember, ...]


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """`Formation.deadline` has come."""


@dataclass(frozen=True, slots=True)
class Persisted:
    """Persist `number` is durable."""

    number: int


@dataclass(frozen=True, slots=True)
class WithdrawRequested:
    """An operator withdraws this node's promise; refused once a founding may exist."""


@dataclass(frozen=True, slots=True)
class ConfirmRequested:
    """An operator confirms that this cluster is this node's farm; refused if that is impossible."""

    cluster_id: bytes


Event = Started | MembersChanged | DeadlineReached | Persisted | WithdrawRequested | ConfirmRequested


@dataclass(frozen=True, slots=True)
class Persist:
    """Store `state` durably in place of the previous one, then pass `Persisted(number)` to `step`."""

    number: int
    state: FormationState


@dataclass(frozen=True, slots=True)
class Advertise:
    """Put `notice` into this node's signed gossip metadata, in place of the previous one."""

    notice: FormationNotice


@dataclass(frozen=True, slots=True)
class Founded:
    """This node is founder `raft_id`: start Raft with the founding's configuration (again after each restart)."""

    founding: Founding
    raft_id: int


@dataclass(frozen=True, slots=True)
class KnowsCluster:
    """Other nodes created the farm: this node is an observer until it is added."""

    founding: Founding


@dataclass(frozen=True, slots=True)
class Alarm:
    """A text that an operator must see."""

    text: str


@dataclass(frozen=True, slots=True)
class FormationRefused:
    """An operator's request is refused; the text gives the reason."""

    text: str


Effect = Persist | Advertise | Founded | KnowsCluster | Alarm | FormationRefused


class FormationPhase(Enum):
    """A node's phase of formation."""

    WATCHING = "watching"
    PROMISED = "promised"
    FOUNDED = "founded"
    OBSERVER = "observer"
