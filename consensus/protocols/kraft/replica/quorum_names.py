"""Which replica an id means, and where it is: what the configuration in force says, and what messages have told.

A voter is found where the configuration says. An observer is in no configuration; only a leader that has been asked to
make it a voter connects to it, and then its address is among the newcomers. A voter that is removed is still known, and
last where it was: a leader that removes itself leads until that is committed, so the others must fetch it from there.

An address in a message is a claim of the sender, so it moves no voter whose address the configuration has. It counts
for the others: a server that was away while the voters changed is told of a leader that its log does not name yet, and
could follow it no other way. Such a leader is known by its id alone. The last `TOLD_MAX` addresses are remembered.

The configuration may be wrong, and only a leader can correct it. So the addresses in messages are kept for every voter,
the newest `TOLD_EACH` of each, as places to try if the voter is not where the configuration says (`elsewhere`). A
server found there must prove that it is this voter (`identification`).
"""

from collections.abc import Mapping
from typing import Final

from consensus.core.model import MAX_MEMBERS, Configuration, ReplicaKey, Server
from consensus.protocols.kafka.wire.limits import KafkaWireError, Topic
from consensus.protocols.kraft.operators.settings import Endpoint
from consensus.protocols.kraft.wire.control_records import endpoint_of, endpoint_text
from consensus.protocols.kraft.wire.replica_names import replica

TOLD_MAX: Final = 64
TOLD_EACH: Final = 3


def host_port(endpoint: str) -> tuple[str, int] | None:
    """The address in a configuration; None: there is none."""
    try:
        return endpoint_of(endpoint)
    except KafkaWireError:
        return None


def server_of(key: ReplicaKey, endpoints: tuple[Endpoint, ...]) -> Server:
    """A voter with its listeners, the first of which is the quorum's."""
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
        """Voters of before: key and address by id, the one removed longest ago first."""
        self._announced: dict[int, tuple[tuple[str, int], ...]] = {}
        """The newest first."""
        self.change(configuration, ())

    def change(self, configuration: Configuration, newcomers: tuple[Server, ...]) -> None:
        """These are in force now."""
        before = {voter: (key, self.endpoint(key)) for voter, key in self._voters.items()}
        self._voters = {replica(server.server_id).id: replica(server.server_id) for server in configuration.voters}
        found = {replica(each.server_id): host_port(each.endpoint) for each in (*newcomers, *configuration.voters)}
        self._addresses = {key: where for key, where in found.items() if where is not None}
        for voter in before.keys() - self._voters.keys():
            self._former[voter] = before[voter]
        while len(self._former) > MAX_MEMBERS:
            del self._former[next(iter(self._former))]

    def learned(self, endpoints: Mapping[int, tuple[str, int]]) -> None:
        """A message has told where these are."""
        for node, where in endpoints.items():
            before = self._announced.pop(node, ())
            self._announced[node] = (where, *(each for each in before if each != where))[:TOLD_EACH]
        while len(self._announced) > TOLD_MAX:
            del self._announced[next(iter(self._announced))]

    @property
    def votes(self) -> bool:
        """Whether this server is among the voters that are in force."""
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
        told = () if self._voters.get(replica.id) in self._addresses else self._announced.get(replica.id, ())
        return told[0] if told else (where if replica == former else None)

    def elsewhere(self, replica: ReplicaKey) -> tuple[tuple[str, int], ...]:
        """Where a voter may be, if it is not at its `endpoint`: none of it is proven."""
        return self._announced.get(replica.id, ())

    def listeners(self) -> tuple[tuple[str, str, int], ...]:
        """See `Names.listeners`."""
        return self._listeners
