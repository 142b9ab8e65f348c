"""Who belongs to the farm: Raft ids given out by the log, each bound to one identity for ever.

    founders     Raft ids 1, 2, … in order of NodeId, known with the founding
    admission    a log entry of the leader: this identity, under this name ──▶ the next Raft id that was never used

The id is not in the entry: it follows from the entries before it, so two leaders cannot give out one id twice, however
the one deposes the other. Nothing is ever taken out of the table. A Raft id is a storage that voted; given to another
router it would vote a second time.

The first identity under a name keeps it. A box that comes under a known name with another identity is either new under
an old name or a stranger, and the log cannot tell which: it is refused until a person has decided. The same identity
may change its name, to one that nobody has.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bridge.core.records import Admission

ADMITTED_MAX = 1024
"""Identities in the life of one farm."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Whose Raft id it is. A founder has no name here until the leader has recorded it."""

    node_id: bytes
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ServerAdmitted:
    """`node_id` has the Raft id `server_id`, and is called `name`."""

    server_id: int
    node_id: bytes
    name: str


@dataclass(frozen=True, slots=True)
class AdmissionRefused:
    """An admission that changed nothing, and why."""

    node_id: bytes
    name: str
    reason: str


def of_founders(founders: tuple[bytes, ...]) -> dict[int, Admitted]:
    """The table before the first entry."""
    return {number: Admitted(node_id) for number, node_id in enumerate(founders, start=1)}


def raft_id_of(admitted: Mapping[int, Admitted], node_id: bytes) -> int | None:
    """The Raft id of an identity, None if it was never admitted."""
    return next((server_id for server_id, each in admitted.items() if each.node_id == node_id), None)


def refusal(admitted: Mapping[int, Admitted], node_id: bytes, name: str) -> str | None:
    """Why this identity cannot be recorded under this name; None if it can."""
    holder = next((each for each in admitted.values() if each.name == name and each.node_id != node_id), None)
    if holder is not None:
        return (
            f"the name {name} belongs to the identity {holder.node_id.hex()}, and {node_id.hex()} comes under it:"
            " give the new router another name, or start it with the old one's identity key"
        )
    if len(admitted) >= ADMITTED_MAX and raft_id_of(admitted, node_id) is None:
        return f"{ADMITTED_MAX} identities were admitted to this farm, and no more can be"
    return None


def admit(
    admitted: Mapping[int, Admitted], admission: Admission
) -> tuple[Mapping[int, Admitted], ServerAdmitted | AdmissionRefused | None]:
    """The table after one admission, and what changed; None if it said nothing new."""
    node_id, name = admission.node_id, admission.name
    reason = refusal(admitted, node_id, name)
    if reason is not None:
        return admitted, AdmissionRefused(node_id, name, reason)
    known = raft_id_of(admitted, node_id)
    if known is not None and admitted[known].name == name:
        return admitted, None
    server_id = known if known is not None else max(admitted, default=0) + 1
    return {**admitted, server_id: Admitted(node_id, name)}, ServerAdmitted(server_id, node_id, name)
