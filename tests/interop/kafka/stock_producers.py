"""Two stock producers, used as in an application: Java's and librdkafka's, idempotent, with a SCRAM login.

    produce_with_java, produce_with_librdkafka  ─▶  the acknowledged offset of each value

They send small batches, so that sending takes long enough for failures during it. librdkafka runs in a separate
process: `python -m tests.interop.kafka.stock_producers JOB`.
"""

import json
import sys
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import trio
from confluent_kafka import KafkaError, Message, Producer

from tests.interop.kafka.tool_jvm import ToolJvm

TIMEOUT_S: Final = 120.0
BATCH_BYTES: Final = 1_000
_MECHANISM: Final = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True)
class Login:
    """A user of a listener, and the password."""

    name: str
    password: str


async def produce_with_java(tools: ToolJvm, address: str, topic: str, values: Sequence[str], login: Login) -> list[int]:
    """Produce with KafkaProducer; return the offsets."""
    properties = {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": _MECHANISM,
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
        f' username="{login.name}" password="{login.password}";',
        "batch.size": str(BATCH_BYTES),
        "enable.idempotence": "true",
    }
    encoded = [b64encode(value.encode()).decode() for value in values]
    done = await tools.do("produce", timeout_s=TIMEOUT_S, topic=topic, values=encoded, properties=properties)
    return [int(offset) for offset in done["offsets"]]


async def produce_with_librdkafka(address: str, topic: str, values: Sequence[str], login: Login) -> list[int]:
    """Produce with confluent-kafka; return the offsets."""
    job = json.dumps([address, topic, list(values), asdict(login)])
    with trio.fail_after(TIMEOUT_S):
        done = await trio.run_process(
            [sys.executable, "-m", "tests.interop.kafka.stock_producers"],
            stdin=job.encode(),
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()
    return [int(offset) for offset in json.loads(done.stdout)]


def _produce(address: str, topic: str, values: Sequence[str], login: dict[str, str]) -> list[int | None]:
    settings: dict[str, str | int | float | bool | None] = {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": _MECHANISM,
        "sasl.username": login["name"],
        "sasl.password": login["password"],
        "enable.idempotence": True,
        "batch.size": BATCH_BYTES,
        "linger.ms": 0,
        "delivery.timeout.ms": int(TIMEOUT_S * 1000),
    }
    offsets: dict[int, int | None] = {}
    producer = Producer(settings)
    for number, value in enumerate(values):

        def delivered(error: KafkaError | None, message: Message, number: int = number) -> None:
            assert error is None, error
            offsets[number] = message.offset()

        producer.produce(topic, value, partition=0, on_delivery=delivered)
        producer.poll(0)
    producer.flush(TIMEOUT_S)
    return [offsets[number] for number in range(len(values))]


if __name__ == "__main__":
    json.dump(_produce(*json.load(sys.stdin)), sys.stdout)
