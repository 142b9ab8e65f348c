"""kafka-python as an application uses it, in its own process, because its threads and warnings stay out of the harness.

    python -m tests.soak.jepsen.kafka_process produce '{"servers": …}'   a request of a write per line ─▶ its result
    python -m tests.soak.jepsen.kafka_process consume '{"servers": …}'   lines of offset and value, from the beginning

A producer is idempotent and has one write under way, until it is acknowledged or its delivery times out. Then the write
may be committed or not, and a new producer continues. A consumer retries forever; the harness ends it.
"""

import json
import sys
import time
from contextlib import suppress
from typing import Any, Final

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

DELIVERY_MS: Final = 30_000
REQUEST_MS: Final = 8_000
RETRY_S: Final = 0.5


def settings(job: dict[str, Any]) -> dict[str, Any]:
    return {
        "bootstrap_servers": job["servers"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": job["user"],
        "sasl_plain_password": job["password"],
        "ssl_cafile": job["certificate"],
        "ssl_check_hostname": False,
        "metadata_max_age_ms": 5_000,
        "reconnect_backoff_ms": 100,
        "reconnect_backoff_max_ms": 1_000,
    }


def produce(job: dict[str, Any]) -> None:
    """Write one value for each line of the input."""
    producer: KafkaProducer | None = None
    for line in sys.stdin:
        result: dict[str, Any] = {"called": time.monotonic_ns()}
        try:
            producer = producer or KafkaProducer(
                **settings(job),
                enable_idempotence=True,
                acks="all",
                linger_ms=0,
                request_timeout_ms=REQUEST_MS,
                delivery_timeout_ms=DELIVERY_MS,
                max_block_ms=DELIVERY_MS,
                max_in_flight_requests_per_connection=1,
            )
            sent = producer.send(job["topic"], json.loads(line)["entry"].encode()).get(DELIVERY_MS / 1000 + 5)
            result |= {"outcome": "ok", "index": sent.offset + 1}
        except (KafkaError, AssertionError, OSError) as error:
            result |= {"outcome": "unknown", "detail": f"{type(error).__name__}: {error}"[:300]}
            if producer is not None:
                with suppress(KafkaError):
                    producer.close(timeout=0)
                producer = None
        result["answered"] = time.monotonic_ns()
        print(json.dumps(result), flush=True)


def consume(job: dict[str, Any]) -> None:
    """Print all records from the beginning on, forever."""
    log = TopicPartition(job["topic"], 0)
    following = 0
    while True:
        with suppress(KafkaError, OSError):
            consumer = KafkaConsumer(
                **settings(job), group_id=None, enable_auto_commit=False, request_timeout_ms=REQUEST_MS
            )
            consumer.assign([log])
            consumer.seek(log, following)
            while True:
                for records in consumer.poll(timeout_ms=1_000).values():
                    for each in records:
                        print(json.dumps([each.offset, each.value.decode()]))
                        following = each.offset + 1
                sys.stdout.flush()
        time.sleep(RETRY_S)


if __name__ == "__main__":
    {"produce": produce, "consume": consume}[sys.argv[1]](json.loads(sys.argv[2]))
