"""docs/reference/kafka.md and kraft.md list the same API versions, settings and error codes as the code.

`test_cli_kraft.py` compares the APIs of kraft.md with a server.
"""

import re
from pathlib import Path

import pytest

from consensus.protocols.kafka import DialOptions, open_connection
from consensus.protocols.kafka.wire.apis import ApiKey, ErrorCode
from consensus.protocols.kraft.operators.settings import VoterSettings, voter_settings
from tests.node.kafka_farm import stage_at
from tests.node.test_kafka_endpoint import LOOPBACK, serving

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
ROW = re.compile(r"^\| (\w+) \| (\d+) \| (\d+) \S (\d+) \|", re.MULTILINE)
ERROR = re.compile(r"^\| ([A-Z0-9_]+) \| (\d+) \|", re.MULTILINE)
SETTING = re.compile(r"^\| `([a-z.]+)` \| (.+?) \|", re.MULTILINE)
PATIENT = DialOptions(connect_timeout_ms=60_000)
"""On a busy machine, the import of Kafka's messages at the first request may take longer than the default."""
REQUIRED = {"node.id": "1", "log.dirs": "log"}
WITHOUT_NUMBER = {
    "process.roles",
    "listeners",
    "advertised.listeners",
    "controller.listener.names",
    "controller.quorum.voters",
    "controller.quorum.bootstrap.servers",
    *REQUIRED,
}


def listed_apis(page: str) -> dict[int, tuple[int, int]]:
    """Return the table of APIs: the lowest and the highest version by key."""
    rows = ROW.findall((REFERENCE / page).read_text(encoding="utf-8"))
    assert all(ApiKey(int(key)).name.replace("_", "") == name.upper() for name, key, _, _ in rows)
    return {int(key): (int(low), int(high)) for _, key, low, high in rows}


async def test_listener_apis_match_page() -> None:
    async with serving(stage_at(), groups=True) as (_, port), open_connection(LOOPBACK, port, PATIENT) as connection:
        assert connection.versions == listed_apis("kafka.md")


@pytest.mark.parametrize("page", ["kafka.md", "kraft.md"])
def test_error_codes_match_names(page: str) -> None:
    rows = ERROR.findall((REFERENCE / page).read_text(encoding="utf-8"))
    assert len(rows) > 20
    assert [name for name, code in rows if ErrorCode(int(code)).name != name] == []
    assert [int(code) for _, code in rows] == sorted(int(code) for _, code in rows)


def test_quorum_settings_match_page_with_defaults() -> None:
    text = (REFERENCE / "kraft.md").read_text(encoding="utf-8")
    table = text.partition("## Settings")[2].partition("TLS and SASL have")[0]
    documented = {name: default.strip("`") for name, default in SETTING.findall(table)}
    with pytest.raises(ValueError, match="The settings are ") as caught:
        voter_settings({"no.setting": ""})
    assert sorted(documented) == sorted(str(caught.value).partition("The settings are ")[2].split(", "))
    quorum = {"controller.quorum.bootstrap.servers": "127.0.0.1:9093"}
    defaults = {name: default for name, default in documented.items() if name not in WITHOUT_NUMBER}
    assert len(defaults) == 11
    set_to_defaults = voter_settings({**REQUIRED, **quorum, **defaults})
    assert set_to_defaults == voter_settings({**REQUIRED, **quorum})
    (listener,) = VoterSettings(1, Path("log")).listeners
    assert documented["listeners"] == f"{listener.name}://{listener.host}:{listener.port}"
