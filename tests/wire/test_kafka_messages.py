"""Kafka's message classes equal those generated from the schemas in kio, a Python package with these schemas."""

import pytest

from tests.wire.kafka_messages import SUBJECTS, WIRE, module_text


@pytest.mark.parametrize("subject", SUBJECTS)
def test_message_classes_equal_generated_source(subject: str) -> None:
    assert (WIRE / f"messages_{subject}.py").read_text(encoding="utf-8") == module_text(subject), (
        "run `python -m tests.wire.kafka_messages`"
    )
