"""A stock consumer as a process: the time to read a topic's records.

    python -m benchmarks.kraft_reader SPECIFICATION     (JSON: address, topic, end, count, passes)

    assign at `end - count` ─▶ consume until the record before `end` ─▶ seconds, records ─▶ the next pass

librdkafka through confluent-kafka, without a group. The first pass connects, requests Metadata and finds the broker;
later passes use the existing connection. The time of a pass is from the assignment to its last record. For the first
pass, the process also reports the time and number of its first records. At the end of the log librdkafka already has a
pending fetch, and the next pass waits for its reply. So the fetch wait is 10 ms instead of the default 500. All other
settings are librdkafka's defaults.
"""

import json
import sys
import time
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

POLL_S: Final = 1.0
PASS_TIMEOUT_S: Final = 120.0
_BATCH: Final = 10_000


@dataclass(frozen=True, slots=True)
class Reading:
    """The specification of the process."""

    address: str
    topic: str
    end: int
    """The offset after the last record."""
    count: int
    """Offsets of one pass, including control records."""
    passes: int


def read(reading: Reading) -> list[dict[str, float]]:
    """Return the seconds, the records, the bytes of values, and the time of the first records, of each pass."""
    consumer = Consumer(
        {
            "bootstrap.servers": reading.address,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
        }
    )
    found: list[dict[str, float]] = []
    try:
        for _ in range(reading.passes):
            began_s = time.perf_counter()
            consumer.assign([TopicPartition(reading.topic, 0, reading.end - reading.count)])
            records, size_bytes, offset = 0, 0, -1
            first_s, first_records = 0.0, 0
            while offset < reading.end - 1:
                messages = consumer.consume(_BATCH, POLL_S)
                for message in messages:
                    if (error := message.error()) is not None:
                        raise KafkaException(error)
                    size_bytes += len(message.value() or b"")
                records += len(messages)
                if messages and offset < 0:
                    first_s, first_records = time.perf_counter() - began_s, len(messages)
                if messages:
                    offset = messages[-1].offset() or 0
                if time.perf_counter() - began_s > PASS_TIMEOUT_S:
                    raise TimeoutError(f"at offset {offset} of {reading.end} after {PASS_TIMEOUT_S:g} s")
            found.append(
                {
                    "seconds": time.perf_counter() - began_s,
                    "records": records,
                    "bytes": size_bytes,
                    "first_s": first_s,
                    "first_records": first_records,
                }
            )
            consumer.unassign()
    finally:
        consumer.close()
    return found


if __name__ == "__main__":
    print(json.dumps({"passes": read(Reading(**json.loads(sys.argv[1])))}), flush=True)
