"""kafka-python as an application uses it, in a separate process, because its modules emit warnings that tests forbid.

    python -m tests.end_to_end.kafka_python '[{"read": UNTIL, "group": …}, …]'  prints the records up to UNTIL
    python -m tests.end_to_end.kafka_python '[{"produce": [VALUE, …]}, …]'      prints an offset or error per value

The last batch that is read may have records at UNTIL and after it; they are printed too.
A job also contains "listen", "login" (the client's settings) and, with "produce", "idempotent". The output is a JSON
array with the result of each job.
"""

import json
import sys
from typing import Any, Final

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

TOPIC: Final = "farm-log"
BOUND_S: Final = 60.0


def read(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the records of the log, from the start or from the group's offset; commit the group's offset."""
    consumer = KafkaConsumer(
        bootstrap_servers=job["listen"],
        group_id=job.get("group"),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **job["login"],
    )
    log = TopicPartition(TOPIC, 0)
    found: list[dict[str, Any]] = []
    try:
        if job.get("group") is None:
            consumer.assign([log])
            consumer.seek_to_beginning(log)
        else:
            consumer.subscribe([TOPIC])
        while log not in consumer.assignment() or consumer.position(log) < job["read"]:
            for batch in consumer.poll(timeout_ms=1_000).values():
                found += [
                    {
                        "offset": each.offset,
                        "key": None if each.key is None else each.key.decode(),
                        "value": each.value.decode(),
                        "timestamp": each.timestamp,
                        "headers": [[name, value.decode()] for name, value in each.headers],
                    }
                    for each in batch
                ]
        if job.get("group") is not None:
            consumer.commit()
    finally:
        consumer.close()
    return found


def produce(job: dict[str, Any]) -> list[int | str]:
    """Return for each value its offset, or the name of its error."""
    producer = KafkaProducer(
        bootstrap_servers=job["listen"], enable_idempotence=job["idempotent"], linger_ms=50, **job["login"]
    )
    try:
        sent = [producer.send(TOPIC, value.encode()) for value in job["produce"]]
        return [_result(each) for each in sent]
    finally:
        producer.close()


def _result(sent: Any) -> int | str:
    try:
        return int(sent.get(BOUND_S).offset)
    except KafkaError as error:
        return type(error).__name__


if __name__ == "__main__":
    results = [read(job) if "read" in job else produce(job) for job in json.loads(sys.argv[1])]
    sys.stdout.write(json.dumps(results))
