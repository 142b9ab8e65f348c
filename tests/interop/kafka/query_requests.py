"""Requests of a client to the log of a quorum, in fixed versions: for measurements with the protocol's own client.

    records_of_times   Produce: a batch with a record of each time
    quorum_state       DescribeQuorum
    offset_of_time     ListOffsets by time
    records_from       Fetch of old records

Kafka's clients send some of these requests only after others, such as Metadata, or only once. A benchmark that repeats
one kind of request sends it by `KafkaConnection.ask`. `fix_versions` selects the versions of these requests.
"""

from collections.abc import Iterable
from typing import Final

from consensus.protocols.kafka.connections.connection import KafkaConnection
from consensus.protocols.kafka.wire import messages_admin as admin
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire.apis import ApiKey
from consensus.protocols.kafka.wire.limits import TOPIC_NAME
from consensus.protocols.kafka.wire.records import Record, RecordBatch
from tests.wire.record_batches import encode_batch

_VERSIONS: Final = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.DESCRIBE_QUORUM: 2,
}
"""Versions whose requests contain the topic's name."""


def fix_versions(connection: KafkaConnection) -> None:
    """Select the versions of the requests below. The server must support them."""
    fixed: dict[int, tuple[int, int]] = {key: (version, version) for key, version in _VERSIONS.items()}
    connection.versions = {**connection.versions, **fixed}


def records_of_times(times_ms: Iterable[int], size_bytes: int) -> clients.ProduceRequest:
    records = tuple(Record(time_ms, None, bytes(size_bytes)) for time_ms in times_ms)
    partition = clients.ProduceRequestPartition(index=0, records=encode_batch(RecordBatch(0, -1, records)))
    topic = clients.ProduceRequestTopic(name=TOPIC_NAME, partition_data=(partition,))
    return clients.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=(topic,))


def produce_error(response: clients.ProduceResponse) -> int:
    """Return the error code of the reply to `records_of_times`."""
    return response.responses[0].partition_responses[0].error_code


def quorum_state() -> admin.DescribeQuorumRequest:
    partitions = (admin.DescribeQuorumRequestPartition(partition_index=0),)
    topic = admin.DescribeQuorumRequestTopic(topic_name=TOPIC_NAME, partitions=partitions)
    return admin.DescribeQuorumRequest(topics=(topic,))


def offset_of_time(timestamp_ms: int) -> clients.ListOffsetsRequest:
    partition = clients.ListOffsetsRequestPartition(partition_index=0, timestamp=timestamp_ms)
    topic = clients.ListOffsetsRequestTopic(name=TOPIC_NAME, partitions=(partition,))
    return clients.ListOffsetsRequest(replica_id=-1, topics=(topic,))


def records_from(offset: int, max_bytes: int) -> clients.FetchRequest:
    """Return Fetch, which does not wait if there are records from `offset` on."""
    partition = clients.FetchRequestPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    topic = clients.FetchRequestTopic(topic=TOPIC_NAME, partitions=(partition,))
    return clients.FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=max_bytes, topics=(topic,))
