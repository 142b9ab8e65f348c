"""Six other clients, each in a separate process: three in Go, one in Node, two in a separate Python environment.

    go/stories CLIENT …            franz-go, Sarama, kafka-go       `make interop-kafka` builds it
    node js/stories.js …           kafkajs                          installed below build/interop-kafka/js
    python/stories.py CLIENT …     aiokafka, kafka-python-ng        in build/interop-kafka/python

All have the same command line: `list`, `read`, `time` and `group` (see `go/main.go`). A record is a line with its
offset and the CRC-32 of its value: a story compares checksums, not values.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

BUILD: Final = Path("build/interop-kafka").resolve()
_HERE: Final = Path(__file__).parent
_PYTHON: Final = (str(BUILD / "python/bin/python"), str(_HERE / "python/stories.py"))
CLIENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "franz-go": (str(BUILD / "go/stories"), "franz-go"),
    "sarama": (str(BUILD / "go/stories"), "sarama"),
    "kafka-go": (str(BUILD / "go/stories"), "kafka-go"),
    "kafkajs": ("node", str(BUILD / "js/stories.js")),
    "aiokafka": (*_PYTHON, "aiokafka"),
    "kafka-python-ng": (*_PYTHON, "kafka-python-ng"),
}
"""The command of each client."""
STORY_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """One record as a client returned it to its program."""

    offset: int
    checksum: int


async def _run(client: str, *arguments: str | int) -> str:
    command = [*CLIENTS[client], *map(str, arguments)]
    with trio.fail_after(STORY_S):
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == 0, f"{client} {arguments}: {done.stderr.decode()[-2_000:]}"
    return done.stdout.decode()


async def read_listing(client: str, addresses: str) -> Mapping[str, Any]:
    """Return topics, groups, settings of the topic, and its end."""
    found: Mapping[str, Any] = json.loads(await _run(client, "list", addresses))
    return found


async def read(client: str, addresses: str, topic: str, count: int) -> list[ReadRecord]:
    """Return the first `count` records."""
    return _records(await _run(client, "read", addresses, topic, count))


async def read_since(client: str, addresses: str, topic: str, count: int, since_ms: int) -> list[ReadRecord]:
    return _records(await _run(client, "time", addresses, topic, count, since_ms))


async def read_in_group(client: str, addresses: str, topic: str, count: int, group: str) -> list[ReadRecord]:
    """Return `count` records in a group, from its committed position on."""
    return _records(await _run(client, "group", addresses, topic, count, group))


def _records(output: str) -> list[ReadRecord]:
    return [ReadRecord(*map(int, line.split())) for line in output.splitlines()]
