"""Checks that the server at an address is the expected voter.

    connect ─▶ ApiVersions ─▶ Vote with pre_vote, for this voter's id and directory, in the present epoch
                                 ├─ INVALID_VOTER_KEY, INCONSISTENT_CLUSTER_ID   another server: ANOTHER
                                 ├─ an authorization or availability error       not served to us: UNKNOWN
                                 └─ any other reply                              it compared the key: SAME

Kafka does not have a request for a server's name. But a server refuses a Vote for another voter (KIP-853), and an
accepted pre-vote does not have an effect (KIP-996). Servers without version 2 of Vote do not support pre-vote, and
an ordinary vote would have effects. So the identity of such servers stays UNKNOWN.

A connection alone is not a sufficient test. Without this check, the address of another server, or of another cluster on
the same machine, could be recorded as the voter's. Then two live servers of three might be unable to elect a leader.
"""

from enum import Enum, auto

import trio

from consensus.core.messages import RequestVote
from consensus.core.model import ORIGIN, ReplicaKey, Term
from consensus.protocols.kafka.connections.connection import KafkaConnection, KafkaConnectionError
from consensus.protocols.kafka.wire.apis import ApiKey, ErrorCode
from consensus.protocols.kafka.wire.limits import KafkaWireError
from consensus.protocols.kraft.wire.mapping import FIRST_PRE_VOTE_VERSION, request_to_wire
from consensus.protocols.kraft.wire.replica_names import Names


class VoterMatch(Enum):
    """The relation of the replying server to the expected voter."""

    SAME = auto()
    ANOTHER = auto()
    UNKNOWN = auto()
    """The server does not support a request that would show it, or does not serve it to us."""


async def identify(
    connection: KafkaConnection, voter: ReplicaKey, names: Names, epoch: Term, cluster_id: str | None, timeout_s: float
) -> VoterMatch:
    """Query the server on a connection that does not run yet. Raises `KafkaConnectionError` without a reply."""
    version = connection.version_of(ApiKey.VOTE)
    if version is None or version < FIRST_PRE_VOTE_VERSION:
        return VoterMatch.UNKNOWN
    vote_request = RequestVote(
        term=epoch + 1, candidate=names.local(), last=ORIGIN, correlation=0, pre_vote=True, cluster_id=cluster_id
    )
    try:
        with trio.fail_after(timeout_s):
            answer = await connection.exchange(request_to_wire(vote_request, voter, names))
    except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError, KafkaWireError) as error:
        raise KafkaConnectionError(f"{connection.peer} did not report its voter id") from error
    codes = {part.error_code for topic in answer.topics for part in topic.partitions} | {answer.error_code}
    if codes & {ErrorCode.INVALID_VOTER_KEY, ErrorCode.INCONSISTENT_CLUSTER_ID}:
        return VoterMatch.ANOTHER
    if codes & {ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.BROKER_NOT_AVAILABLE} or not answer.topics:
        return VoterMatch.UNKNOWN
    return VoterMatch.SAME
