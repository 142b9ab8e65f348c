"""A member of a consumer group that reads until it is stopped: `python -m tests.interop.kafka.group_member JOB`.

    [client, address, topic, group]      `librdkafka` or `kafka-python`, with a session timeout of 6 s

Prints a line for each offset that it reads, and `assigned N` and `revoked N` when its partitions change. It commits
automatically, every 5 s and when it loses a partition, which is the default of these clients. On SIGTERM it leaves.
"""

import json
import signal
import sys
from typing import Any, Final

from confluent_kafka import Consumer

SESSION_MS: Final = 6_000
POLL_S: Final = 0.2
_ended: Final[list[int]] = []


def say(*words: object) -> None:
    """Print a line, without buffering."""
    print(*words, flush=True)


def read_with_librdkafka(address: str, topic: str, group: str) -> None:
    settings: dict[str, str | int | float | bool | None] = {
        "bootstrap.servers": address,
        "group.id": group,
        "session.timeout.ms": SESSION_MS,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    consumer.subscribe(
        [topic],
        on_assign=lambda _, partitions: say("assigned", len(partitions)),
        on_revoke=lambda _, partitions: say("revoked", len(partitions)),
    )
    while not _ended:
        message = consumer.poll(POLL_S)
        if message is not None and message.error() is None:
            say(message.offset())
    consumer.close()


def read_with_kafka_python(address: str, topic: str, group: str) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer  # noqa: PLC0415 - the other client does not need it

    class PrintingListener(ConsumerRebalanceListener):  # type: ignore[misc]  # the package is untyped
        def on_partitions_assigned(self, assigned: Any) -> None:
            say("assigned", len(assigned))

        def on_partitions_revoked(self, revoked: Any) -> None:
            say("revoked", len(revoked))

    consumer = KafkaConsumer(
        bootstrap_servers=address, group_id=group, session_timeout_ms=SESSION_MS, auto_offset_reset="earliest"
    )
    consumer.subscribe([topic], listener=PrintingListener())
    while not _ended:
        for records in consumer.poll(timeout_ms=int(POLL_S * 1000)).values():
            for record in records:
                say(record.offset)
    consumer.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: _ended.append(number))
    client, *place = json.loads(sys.argv[1])
    (read_with_librdkafka if client == "librdkafka" else read_with_kafka_python)(*place)
