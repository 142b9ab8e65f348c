"""The log of a generated farm as a test's log. The farm has many failures for its size."""

import base64
import json
from typing import Any

import pytest

from pipeline import load_model
from pipeline.load_model import LoadModel
from tests.pipeline.farm_log_server import MadeUpLog

OFTEN = {
    "RESTART_MEAN_DAYS": 0.1,
    "HOSTILE_SHARE": 0.02,
    "CLOCK_OFF_SHARE": 0.2,
    "LEADER_MEAN_HOURS": 1.0,
    "FAILING_SHARE": 0.3,
    "PUBLICATION_PERIODS": 7,
}
UNHEALTHY_EVERY = 17


def generated_log(routers: int, days: float, seed: int) -> MadeUpLog:
    """Return entries like `garlicfarm pipeline generate`, with the rates of `OFTEN` and unhealthy destinations."""
    log = MadeUpLog()
    with pytest.MonkeyPatch.context() as patched:
        for name, value in OFTEN.items():
            patched.setattr(load_model, name, value)
        for entry in LoadModel(routers, days, seed).entries():
            if entry.value is None:
                log.add("configuration", value='{"voters": [{"id": 1}]}')
            else:
                _add(log, entry.value)
            log.entries[-1]["term"] = entry.term
    return log


def _add(log: MadeUpLog, value: bytes) -> None:
    document = _parsed(value)
    if isinstance(document, dict) and isinstance(document.get("clock"), dict):
        log.log_time_ms = document["clock"]["time"]
    healthy, unhealthy = '"healthy":true', '"healthy":false'
    try:
        text = value.decode()
    except UnicodeDecodeError:
        log.add(base64=base64.b64encode(value).decode())
    else:
        log.add(value=text.replace(healthy, unhealthy) if len(log.entries) % UNHEALTHY_EVERY == 0 else text)


def _parsed(value: bytes) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None
