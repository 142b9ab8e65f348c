"""The farm's Raft group for Kafka's quorum tool: the facts of `garlicfarm status` in Kafka's terms.

    node id          Raft id                            log end offset    index of the last entry
    leader epoch     term                               high watermark    commit index
    voter, observer  voter, learner                     listeners         the Raft port, and the Kafka listener if the
                                                                          settings contain it

Followers do not fetch here: *last fetched* is the time of a follower's last reply to its leader.
"""

from bridge.node.founded_farm import CurrentFarm, FoundedFarm
from bridge.node.kafka.farm_batches import epoch_of
from bridge.node.kafka.farm_topic import NO_ID, listeners_of
from bridge.node.settings.clients import KafkaSettings
from consensus import FollowerProgress, Server, integer_id
from consensus.protocols.kafka import QuorumView, ReplicaView
from gossip.node import parse_endpoint

RAFT_LISTENER = "RAFT"
KAFKA_LISTENER = "FARM"
_SCHEME = "tcp://"


def quorum_of(current: CurrentFarm, settings: KafkaSettings) -> QuorumView:
    """Return the group as this node sees it. While this node is not a server of a farm, the group lacks a leader."""
    farm = current.farm
    if farm is None:
        return QuorumView(
            NO_ID, None, leader_is_listed=False, leader_epoch=0, high_watermark=0, voters=(), observers=()
        )
    raft, role = farm.replica.server.describe().raft, farm.replica.server.role
    leader_id = None if role.leader is None else integer_id(role.leader)
    followers = {integer_id(each.server_id): each for each in raft.followers}

    def replica(server: Server) -> ReplicaView:
        number = integer_id(server.server_id)
        listeners = _listeners(server, farm, settings)
        if number == farm.replica.server_id:
            contact_ms = 0 if number == leader_id else None
            return ReplicaView(number, raft.last.index, contact_ms, contact_ms, listeners)
        if number == leader_id:
            return ReplicaView(number, raft.last.index, listeners=listeners)
        return _followed(number, followers.get(number), listeners)

    configuration = raft.configuration
    return QuorumView(
        node_id=farm.replica.server_id,
        leader_id=leader_id,
        leader_is_listed=leader_id in listeners_of(farm, settings),
        leader_epoch=epoch_of(role.term),
        high_watermark=raft.commit_index,
        voters=tuple(map(replica, configuration.voters)),
        observers=tuple(map(replica, configuration.learners)),
    )


def _followed(
    number: int, progress: FollowerProgress | None, listeners: tuple[tuple[str, str, int], ...]
) -> ReplicaView:
    if progress is None:
        return ReplicaView(number, listeners=listeners)
    match = None if progress.contact_ms is None else progress.match
    return ReplicaView(number, match, progress.contact_ms, progress.caught_up_ms, listeners)


def _listeners(server: Server, farm: FoundedFarm, settings: KafkaSettings) -> tuple[tuple[str, str, int], ...]:
    number = integer_id(server.server_id)
    # The log keeps the address at the time of joining; the server's own description is newer.
    admitted = farm.state.admitted.get(number)
    described = None if admitted is None else farm.endpoint_of(admitted.node_id)
    known = {farm.replica.server_id: settings.advertise, **listeners_of(farm, settings)}
    found = [(KAFKA_LISTENER, known[number].host, known[number].port)] if number in known else []
    try:
        return ((RAFT_LISTENER, *parse_endpoint((described or server.endpoint).removeprefix(_SCHEME))), *found)
    except ValueError:
        return tuple(found)
