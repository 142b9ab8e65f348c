"""A JVM that stays open with Kafka's command line tools, consumer, producer and admin client.

A separate JVM for each command would take 0.7 s. `ToolJvm` runs the program `java/KafkaTools.java`, which reads one
command per line and runs Kafka's classes in its process. Commands may run concurrently; Kafka's command line tools,
which print, run in sequence.

    quorum, format, dump    the output of the tool of that name, for its `arguments`
    consume                 documents with `records`, then their number, the speed, and the position
    produce, create-topic   by KafkaProducer and the admin client
    add-voter, remove-voter    by the admin client, with `bootstrap.controllers` in the properties
    alter-configs, produce-each    sequential writes by the admin client and by KafkaProducer, for measurements
"""

import json
import math
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from benchmarks.child import Child, ChildError

BUILD: Final = Path(__file__).parents[3] / "build" / "interop-kafka"
CLASSES: Final = BUILD / "classes"
CLASS_PATH: Final = f"{CLASSES}:{BUILD}/jars/*"
LOG_SETTINGS: Final = Path(__file__).parent / "java" / "log4j2.yaml"
SMALL: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
TOOL_TIMEOUT_S: Final = 60.0
TOOL_SETTINGS: Final = "default.api.timeout.ms=10000\nrequest.timeout.ms=5000\n"
Settings = Mapping[str, str | int]


def missing() -> str | None:
    """Return the name of a missing requirement of Kafka, or None."""
    if shutil.which("javac") is None:
        return "no Java development kit on this machine"
    if not (CLASSES / "KafkaTools.class").is_file():
        return "Kafka's jars are missing; `make interop-kafka` downloads them"
    return None


def java(main_class: str, *arguments: str, options: Sequence[str] = SMALL) -> list[str]:
    """Return the command that starts a Java class of Kafka or of these tests."""
    # Without files of performance counters, and without Kafka's banner.
    fixed = ("-XX:-UsePerfData", f"-Dlog4j2.configurationFile={LOG_SETTINGS}")
    return ["java", *options, *fixed, "-cp", CLASS_PATH, main_class, *arguments]


class ToolError(Exception):
    """A command of `ToolJvm` failed; the text is Kafka's."""


class ToolJvm:
    """A process of `KafkaTools`. Commands may run concurrently, while `run` reads the replies."""

    def __init__(self, child: Child, settings: Path) -> None:
        self._child = child
        self._settings = settings
        self._count = 0
        self._answers: dict[int, trio.MemorySendChannel[dict[str, Any]]] = {}
        self._sending = trio.Lock()
        self._ending = False

    @classmethod
    async def start(cls, log: Path, options: Sequence[str] = SMALL) -> "ToolJvm":
        """Start a JVM; `run` must follow."""
        settings = log.with_suffix(".properties")
        settings.write_text(TOOL_SETTINGS, encoding="utf-8")
        return cls(await Child.start("the JVM with Kafka's tools", java("KafkaTools", options=options), log), settings)

    @property
    def pid(self) -> int:
        return self._child.pid

    async def run(self) -> None:
        """Read the output of the process until `end`."""
        while True:
            try:
                document = await self._child.receive_document(math.inf)
            except ChildError:
                if self._ending:
                    return
                raise
            if (answers := self._answers.get(document["n"])) is not None:
                answers.send_nowait(document)

    @asynccontextmanager
    async def ask(self, command: str, **arguments: object) -> AsyncIterator[trio.MemoryReceiveChannel[dict[str, Any]]]:
        """Run one command; yield its replies. The last reply has `ok` or `error`."""
        self._count += 1
        number = self._count
        send, receive = trio.open_memory_channel[dict[str, Any]](math.inf)
        self._answers[number] = send
        try:
            async with self._sending:
                await self._child.send_line(json.dumps({"n": number, "do": command, **arguments}))
            yield receive
        finally:
            del self._answers[number]

    async def do(self, command: str, *, timeout_s: float = TOOL_TIMEOUT_S, **arguments: object) -> Any:
        """Run a command with one reply; raise `ToolError` with Kafka's text."""
        with trio.fail_after(timeout_s):
            async with self.ask(command, **arguments) as answers:
                answer = await answers.receive()
        if "error" in answer:
            raise ToolError(f"{command}: {answer['error']}")
        return answer["ok"]

    async def end(self) -> None:
        self._ending = True
        await self._child.end()

    async def format(self, properties: Path, cluster_id: str, *arguments: str) -> None:
        """Run kafka-storage format on the directory named in a file of settings."""
        config = ("-t", cluster_id, "-c", str(properties))
        await self.do("format", arguments=["format", *config, *arguments])

    async def describe(self, view: str, *addresses: str, brokers: bool = False) -> str:
        """Return the output of kafka-metadata-quorum; the view is `--status` or `--replication`."""
        where = ("--bootstrap-server" if brokers else "--bootstrap-controller", ",".join(addresses))
        config = ("--command-config", str(self._settings))
        return str(await self.do("quorum", arguments=[*where, *config, "describe", view]))

    async def status(self, *addresses: str, brokers: bool = False) -> dict[str, str]:
        """Return `describe --status` by name: ClusterId, LeaderId, LeaderEpoch, HighWatermark and the later fields."""
        return fields_of(await self.describe("--status", *addresses, brokers=brokers))

    async def replication(self, *addresses: str, brokers: bool = False) -> list[dict[str, str]]:
        """Return `describe --replication`: NodeId, DirectoryId, LogEndOffset, Lag and the later columns per replica."""
        return rows_of(await self.describe("--replication", *addresses, brokers=brokers))


def fields_of(printed: str) -> dict[str, str]:
    """Parse lines of `Name: value`."""
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in printed.splitlines())}


def rows_of(printed: str) -> list[dict[str, str]]:
    """Parse a table with tabs under a line of names."""
    head, *rows = [[cell.strip() for cell in line.split("\t")] for line in printed.splitlines() if line.strip()]
    return [{name: cell for name, cell in zip(head, row, strict=False) if name} for row in rows]
