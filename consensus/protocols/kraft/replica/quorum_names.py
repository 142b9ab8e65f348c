"""Replicas by id, and their addresses: from the configuration in force and from messages.

A voter's address comes from the configuration. An observer is not in the configuration. Only a leader connects to it,
to make it a voter; then the observer's address is among the newcomers. A removed voter stays known at its last address.
This is necessary if a leader removes itself: it leads until the removal is committed, and the others must fetch the
removal from it.

An address in a message is a claim of the sender, so it does not replace a voter's configured address. For an id outside
the configuration, such an address is the only known one. A server that was offline during a change of the voters may
reach the leader only at such an address. These addresses are stored for the last `ANNOUNCED_IDS_MAX` ids.

The configuration may be wrong, and only a leader can correct it. So the newest `ADDRESSES_PER_ID_MAX` addresses in
messages are kept for every voter, to be tried if the configured one fails (`elsewhere`). A server found there must
prove that it is this voter (`identification`).
"""

from collections.abc import Iterable, Mapping
from typing import Final

from consensus.core.model import MAX_MEMBERS, Configuration, ReplicaKey, Server, endpoint_text
from consensus.protocols.kafka.wire.limits import KafkaWireError, Topic
from consensus.protocols.kafka.wire.messages_admin import AddRaftVoterRequestListener
from consensus.protocols.kraft.operators.settings import Endpoint
from consensus.protocols.kraft.wire.control_records import endpoint_of
from consensus.protocols.kraft.wire.replica_names import replica

ANNOUNCED_IDS_MAX: Final = 64
ADDRESSES_PER_ID_MAX: Final = 3


def host_port(endpoint: str) -> tuple[str, int] | None:
    """Return the address in a configuration, or None."""
    try:
        return endpoint_of(endpoint)
    except KafkaWireError:
        return None


def server_of(key: ReplicaKey, endpoints: Iterable[Endpoint | AddRaftVoterRequestListener]) -> Server:
    """Return a voter with its listeners; the first is the quorum's."""
    listeners = tuple((endpoint.name, endpoint_text(endpoint.host, endpoint.port)) for endpoint in endpoints)
    return Server(key, listeners[0][1], listeners)


class QuorumNames:
    """`replica_names.Names` of one server."""

    def __init__(
        self,
        own: ReplicaKey,
        listeners: tuple[Endpoint, ...],
        configuration: Configuration,
        topic: Topic = Topic(),  # noqa: B008 - it is frozen
    ) -> None:
        self._own = own
        self._topic = topic
        self._listeners = tuple((each.name, each.host, each.port) for each in listeners)
        self._voters: dict[int, ReplicaKey] = {}
        self._addresses: dict[ReplicaKey, tuple[str, int]] = {}
        self._former: dict[int, tuple[ReplicaKey, tuple[str, int] | None]] = {}
        """Former voters: key and address by id, the earliest removed first."""
        self._announced: dict[int, tuple[tuple[str, int], ...]] = {}
        """Addresses in messages by replica id, the newest first."""
        self.change(configuration, ())

    def change(self, configuration: Configuration, newcomers: tuple[Server, ...]) -> None:
        """Set the configuration in force, and its newcomers."""
        before = {voter: (key, self.endpoint(key)) for voter, key in self._voters.items()}
        self._voters = {replica(server.server_id).id: replica(server.server_id) for server in configuration.voters}
        found = {replica(each.server_id): host_port(each.endpoint) for each in (*newcomers, *configuration.voters)}
        self._addresses = {key: where for key, where in found.items() if where is not None}
        for voter in before.keys() - self._voters.keys():
            self._former[voter] = before[voter]
        while len(self._former) > MAX_MEMBERS:
            del self._former[next(iter(self._former))]

    def learned(self, endpoints: Mapping[int, tuple[str, int]]) -> None:
        """Store the addresses from a message."""
        for node, where in endpoints.items():
            before = self._announced.pop(node, ())
            self._announced[node] = (where, *(each for each in before if each != where))[:ADDRESSES_PER_ID_MAX]
        while len(self._announced) > ANNOUNCED_IDS_MAX:
            del self._announced[next(iter(self._announced))]

    @property
    def votes(self) -> bool:
        """Return True if this server is a voter in force."""
        return self._voters.get(self._own.id) == self._own

    def topic(self) -> Topic:
        """See `Names.topic`."""
        return self._topic

    def local(self) -> ReplicaKey:
        """See `Names.local`."""
        return self._own

    def replica_key(self, replica_id: int, directory: bytes) -> ReplicaKey:
        """See `Names.replica_key`."""
        voter = self._voters.get(replica_id)
        return voter if voter is not None and not voter.directory else ReplicaKey(replica_id, directory)

    def voter_key(self, voter_id: int) -> ReplicaKey | None:
        """See `Names.voter_key`."""
        former = self._former.get(voter_id)
        return self._voters.get(voter_id) or (None if former is None else former[0])

    def endpoint(self, replica: ReplicaKey) -> tuple[str, int] | None:
        """See `Names.endpoint`."""
        known = self._addresses.get(replica)
        former, where = self._former.get(replica.id, (None, None))
        if known is not None or replica not in (self._voters.get(replica.id), former, ReplicaKey(replica.id)):
            return known
        places = () if self._voters.get(replica.id) in self._addresses else self._announced.get(replica.id, ())
        return places[0] if places else (where if replica == former else None)

    def elsewhere(self, replica: ReplicaKey) -> tuple[tuple[str, int], ...]:
        """Return unproven addresses of a voter, to try if it is not at its `endpoint`."""
        return self._announced.get(replica.id, ())

    def listeners(self) -> tuple[tuple[str, str, int], ...]:
        """See `Names.listeners`."""
        return self._listeners
