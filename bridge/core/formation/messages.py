"""The events and effects of `Formation`.

`Persist` effects are numbered; one is in progress at a time, and its completion arrives as the event `Persisted`. This
event causes the effects that need the durable state (the notice with the promise, the start of Raft). So the code that
executes the effects need not order them.
"""

from enum import Enum

from msgspec import Struct

from bridge.core.formation.founding import FormationNotice, FormationState, Founding
from bridge.core.formation.member import FarmMember


class Started(Struct, frozen=True):
    """The first event of a run. Its effects repeat the durable state: `Advertise`, and `Founded` or `KnowsCluster`."""


class MembersChanged(Struct, frozen=True):
    """All other members, alive or not, each with its latest notice."""

    members: tuple[FarmMember, ...]


class DeadlineReached(Struct, frozen=True):
    """`Formation.deadline` has come."""


class Persisted(Struct, frozen=True):
    """Persist `number` is durable."""

    number: int


class WithdrawRequested(Struct, frozen=True):
    """An operator withdraws this node's promise; refused once a founding may exist."""


class ConfirmRequested(Struct, frozen=True):
    """An operator confirms that this cluster is this node's farm; refused if that is impossible."""

    cluster_id: bytes


Event = Started | MembersChanged | DeadlineReached | Persisted | WithdrawRequested | ConfirmRequested


class Persist(Struct, frozen=True):
    """Store `state` durably in place of the previous one, then pass `Persisted(number)` to `step`."""

    number: int
    state: FormationState


class Advertise(Struct, frozen=True):
    """Put `notice` into this node's signed gossip metadata, in place of the previous one."""

    notice: FormationNotice


class Founded(Struct, frozen=True):
    """This node is founder `raft_id`: start Raft with the founding's configuration (again after each restart)."""

    founding: Founding
    raft_id: int


class KnowsCluster(Struct, frozen=True):
    """Other nodes created the farm: this node is an observer until it is added."""

    founding: Founding


class Alarm(Struct, frozen=True):
    """A text that an operator must see."""

    text: str


class FormationRefused(Struct, frozen=True):
    """An operator's request is refused; the text gives the reason."""

    text: str


Effect = Persist | Advertise | Founded | KnowsCluster | Alarm | FormationRefused


class FormationPhase(Enum):
    """A node's phase of formation."""

    WATCHING = "watching"
    PROMISED = "promised"
    FOUNDED = "founded"
    OBSERVER = "observer"
