"""The replacement of the compacted part of the farm's log for ØMQ Raft clients: the farm's state as JSON.

Servers exchange snapshots as images with checksums, in a format of garlicfarm. A reader of the log gets this document
instead, made from the stored snapshot, and continues with the entry after `index`. Destinations are given by their
addresses, as in the view. The document contains only the state shared by all servers. Servers with different compaction
points return documents with different indexes.
"""

from collections.abc import Iterator, Mapping

from bridge.api.json import Document, Record
from bridge.core.log.hashes import hash_of
from bridge.core.log.weights import THOUSANDTHS
from bridge.core.membership.admission import server_name
from bridge.core.state.farm_state import FarmState, MasterState

_SUFFIX = ".b32.i2p"


class SnapshotIdentity(Record, frozen=True):
    """An identity that the log has admitted."""

    raft_id: int
    """Raft id of the identity."""
    name: str
    """Name of the identity for operators."""
    node_id: str
    """NodeId of the identity."""
    standing: str
    """`member`, `retired`, `evicted` or `lapsed`."""
    removed: bool
    """True if an operator removed it from the group."""
    heard_ms: int | None
    """Log time of its last report; null without a report."""


class SnapshotLeaf(Record, frozen=True):
    """A leaf in a structure."""

    destination: str
    """The address of the leaf."""
    cost: int
    """0 to 200; a lower cost is preferred."""


class SnapshotMaster(Record, frozen=True):
    """The publication of one master destination."""

    destination: str
    """The address of the master."""
    publisher_id: int | None
    """The Raft id of the publisher; null while no server can publish."""
    published_s: int | None
    """The timestamp of the last accepted publication, in seconds; null before the first one."""
    leaves: tuple[SnapshotLeaf, ...]
    """The leaves in the structure."""


class LogSnapshot(Document, frozen=True):
    """The farm's state after the entry at `index`."""

    index: int
    """The last entry that this document replaces."""
    term: int
    """The term of that entry."""
    log_time_ms: int
    """Log time after that entry."""
    level: int
    """The feature level."""
    servers: tuple[SnapshotIdentity, ...]
    """In order of their Raft ids."""
    masters: tuple[SnapshotMaster, ...]
    """In order of their addresses."""
    excluded: tuple[str, ...]
    """The addresses of leaves that no structure lists."""
    costs: Mapping[str, float]
    """The factors of operators on the costs of leaves, by address."""


def log_snapshot(state: FarmState, index: int, term: int) -> LogSnapshot:
    """Return the document of a state."""
    return LogSnapshot(
        index=index,
        term=term,
        log_time_ms=state.log_time_ms,
        level=state.level,
        servers=tuple(_servers(state)),
        masters=tuple(
            sorted((_master(each, master) for each, master in state.masters.items()), key=lambda made: made.destination)
        ),
        excluded=tuple(sorted(each + _SUFFIX for each in state.weights.excluded)),
        costs={each + _SUFFIX: factor / THOUSANDTHS for each, factor in sorted(state.weights.costs.items())},
    )


def _servers(state: FarmState) -> Iterator[SnapshotIdentity]:
    for raft_id, identity in sorted(state.admitted.items()):
        reported = state.servers.get(raft_id)
        yield SnapshotIdentity(
            raft_id=raft_id,
            name=server_name(state.admitted, raft_id),
            node_id=identity.node_id.hex(),
            standing=identity.standing.value,
            removed=raft_id in state.removed,
            heard_ms=None if reported is None else reported.reported_ms,
        )


def _master(destination: str, master: MasterState) -> SnapshotMaster:
    publication = master.publication
    return SnapshotMaster(
        destination=_address(destination),
        publisher_id=master.choice.server_id,
        published_s=None if publication is None else publication.published_s,
        leaves=tuple(SnapshotLeaf(_address(each.destination), each.cost) for each in master.leaves),
    )


def _address(destination: str) -> str:
    return hash_of(destination) + _SUFFIX
