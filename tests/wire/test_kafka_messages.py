"""The classes of Kafka's messages are what kio's schemas give."""

import pytest

from tests.wire.kafka_messages import SUBJECTS, WIRE, module_text


@pytest.mark.parametrize("subject", SUBJECTS)
def test_messages_equal_what_is_generated_from_kio(subject: str) -> None:
    assert (WIRE / f"messages_{subject}.py").read_text(encoding="utf-8") == module_text(subject), (
        "run `python -m tests.wire.kafka_messages`"
    )
