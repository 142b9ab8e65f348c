"""A listener for Kafka clients with a crowd of connections: it still replies, and its memory is bounded."""

import struct
from pathlib import Path

import pytest
import trio

from consensus.protocols.kafka import ConsumerService, ListenerOptions, ProduceService, open_listener
from consensus.protocols.kafka.connections.connection import KafkaConnectionError, connect, open_connection
from consensus.protocols.kafka.connections.counters import ListenerClose
from consensus.protocols.kafka.connections.listener import KafkaListener
from consensus.protocols.kafka.wire import messages_clients as clients
from consensus.protocols.kafka.wire.apis import ApiKey
from consensus.protocols.kafka.wire.codec import encode_request
from tests.node.kraft_topic import TOPIC_ID, MemoryTopic, values_in, written

LOOPBACK = "127.0.0.1"
TIMEOUT_S = 120
CROWD = 20
"""Connections of each of the four kinds of clients."""
BUDGET_MIB = 16
MOST_MIB = 140
"""Limit on the growth in MiB.

Decoded requests that wait for records use 27. Received parts of requests use 16, and unsent replies also 16, because
`BUDGET_MIB` is their limit. The cache of batches uses 20. Buffers use an eighth of this sum, so the total is 90.
Replies to closed connections must be freed: 8 MB for each of the `CROWD` connections would add 160.
"""


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4_096 / 2**20


def fetch(offset: int, *, partitions: int = 1, max_wait_ms: int = 0) -> clients.FetchRequest:
    partition = clients.FetchRequestPartition(partition=0, fetch_offset=offset, partition_max_bytes=2**31 - 1)
    topic = clients.FetchRequestTopic(topic_id=TOPIC_ID, partitions=(partition,) * partitions)
    return clients.FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=(topic,))


def framed(message: clients.FetchRequest | clients.ProduceRequest) -> bytes:
    key = ApiKey.FETCH if isinstance(message, clients.FetchRequest) else ApiKey.PRODUCE
    frame = encode_request(key, 17 if key is ApiKey.FETCH else 9, 1, "crowd", message)
    return struct.pack(">i", len(frame)) + frame


async def check_reply(listener: KafkaListener, topic: MemoryTopic) -> None:
    async with open_connection(LOOPBACK, listener.port) as connection:
        last = topic.batches[-1]
        answer = await connection.ask(fetch(last[0]))
        assert values_in(answer.responses[0].partitions[0].records)[0] == values_in(last[2])[0]


async def crowd(listener: KafkaListener, data: bytes) -> list[trio.SocketStream]:
    streams = []
    for _ in range(CROWD):
        stream = await trio.open_tcp_stream(LOOPBACK, listener.port)
        streams.append(stream)
        with trio.move_on_after(0.05):
            await stream.send_all(data)
    return streams


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads its memory from /proc")
async def test_listener_replies_despite_stalled_connections() -> None:
    # Given a topic of 20 MB and a listener with room for the crowd
    topic = MemoryTopic()
    for _ in range(20):
        topic.write(b"x" * 1_000_000)
    options = ListenerOptions(max_incomplete_bytes=BUDGET_MIB * 2**20, max_untaken_bytes=BUDGET_MIB * 2**20)
    with trio.fail_after(TIMEOUT_S):
        async with open_listener([ConsumerService(topic), ProduceService(topic)], options) as listener:
            topic.is_served_at(listener.port)
            await check_reply(listener, topic)
            before_mib = resident_mib()
            # When one crowd sends very large requests that wait for records, and another sends only parts of requests.
            # When a third crowd does not read its large replies, and a fourth produces without waiting for replies.
            flood = clients.ProduceRequest(
                acks=0,
                timeout_ms=1_000,
                topic_data=(
                    clients.ProduceRequestTopic(
                        name="farm",
                        partition_data=(clients.ProduceRequestPartition(index=0, records=written(0, [b"flood"])),),
                    ),
                ),
            )
            open_streams = await crowd(listener, framed(fetch(topic.end, partitions=1_900, max_wait_ms=60_000)))
            open_streams += await crowd(listener, struct.pack(">i", 8_000_000) + bytes(2_000_000))
            open_streams += await crowd(listener, framed(fetch(0)))
            open_streams += await crowd(listener, framed(flood) * 200)
            await check_reply(listener, topic)
            grown_mib = resident_mib() - before_mib
            # Then the listener replies to other clients, its memory is bounded, and connections beyond its budgets are
            # closed
            assert grown_mib < MOST_MIB, f"{grown_mib:.0f} MiB"
            assert listener.counters[ListenerClose.REQUEST_BYTES] > 0
            assert listener.counters[ListenerClose.ANSWER_BYTES] > 0
            for stream in open_streams:
                await trio.aclose_forcefully(stream)


@pytest.mark.parametrize("host", ["a" * 70, "..", "\ud800"])
async def test_invalid_host_name_fails_connection(host: str) -> None:
    """A message of a peer or an administrator may contain any address."""
    with pytest.raises(KafkaConnectionError, match="it is not a host name"):
        await connect(host, 1)
