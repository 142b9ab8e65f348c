"""The clients of a run: writers over three protocols, linearizable readers, and readers that follow the log.

    writer ──▶ random register, next value ──▶ Garlic Farm: /v1/submit at a random node, forwarded to the leader
                                           ├─▶ ØMQ Raft:    RequestUpdate to the leader
                                           └─▶ Kafka:       produce with idempotence (kafka_process)
    reader ──▶ /v1/log?linearizable at a random node ──▶ the value of each register at the commit index of the reply

    followers: a ØMQ subscription, Kafka consumers: every record, checked at the end

A write of unknown outcome is repeated under the same request id at another node. After the last attempt the client
leaves the outcome open, and continues with the next write.
"""

import itertools
import json
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from random import Random
from typing import Final

import trio

from bridge.api.control import SubmitOutcome
from bridge.node.control.client import ControlClient, ControlError
from consensus.protocols import zmq_raft
from consensus.protocols.zmq_raft import CommittedEntry, CurveClient, LogEntryKind
from tests.soak.jepsen.history import History, Operation, Outcome, Protocol, entry, written
from tests.soak.jepsen.network import address
from tests.soak.jepsen.nodes import IDENT, KAFKA_PORT, TOPIC, USER, ZMQ_PORT, Access, NodeProcess
from tests.soak.jepsen.schedule import NODES
from tests.structure.sources import ROOT

KEYS: Final = 5
ATTEMPTS: Final = 5
PAUSE_S: Final = 0.3
"""Mean time between two operations of a client: the machine has few processors."""
RETRY_S: Final = 0.2
CONNECT_S: Final = 2.0
ORDER_S: Final = 8.0
PAGE: Final = 1_000
NUMBERS: Final = range(1, NODES + 1)


class Workload:
    """The clients' common state."""

    def __init__(self, nodes: Sequence[NodeProcess], access: Access, history: History, seed: int, name: str) -> None:
        self.nodes = nodes
        self.access = access
        self.history = history
        self.name = name
        """A name that differs from the names of all earlier runs, because request ids contain it."""
        self.is_ended = False
        self._random = Random(seed)
        self._values = itertools.count(1)

    def next_write(self) -> tuple[int, int]:
        """Return a register and a new value."""
        return self._random.randint(1, KEYS), next(self._values)

    def any_node(self) -> NodeProcess:
        return self._random.choice(self.nodes)

    async def pause(self) -> None:
        """Wait until the next operation."""
        await trio.sleep(self._random.uniform(0, 2 * PAUSE_S))

    # -- Garlic Farm ---------------------------------------------------------------------------------------------------

    async def submit(self, number: int, born: int) -> None:
        """Submit writes until the end of the load; `born` is a committed index."""
        client = f"submitter-{number}"
        for sequence in itertools.count(1):
            await self.pause()
            if self.is_ended:
                return
            key, value = self.next_write()
            called_ns = time.monotonic_ns()
            outcome, index, detail = await self._submitted(f"{self.name}-{number}-{born}-{sequence}", key, value)
            self.history.add(
                Operation(
                    Protocol.GARLIC_FARM, client, value, key, called_ns, time.monotonic_ns(), outcome, index, {}, detail
                )
            )

    async def _submitted(self, request: str, key: int, value: int) -> tuple[Outcome, int | None, str]:
        may_be_committed, detail = False, ""
        for _ in range(ATTEMPTS):
            node = self.any_node()
            try:
                async with ControlClient(node.socket, CONNECT_S, order_timeout_s=ORDER_S) as client:
                    answer = await client.submit(entry(key, value), request)
            except ControlError as error:
                # The client may have sent the request before the error.
                may_be_committed, detail = True, f"{node.name}: {error}"
            else:
                detail = f"{node.name}: {answer.outcome.value} {answer.reason}"
                match answer.outcome:
                    case SubmitOutcome.COMMITTED:
                        return Outcome.OK, answer.index, detail
                    case SubmitOutcome.UNKNOWN:
                        may_be_committed = True
                    case SubmitOutcome.EXPIRED:
                        return (Outcome.UNKNOWN if may_be_committed else Outcome.FAILED), None, detail
                    case SubmitOutcome.REFUSED | SubmitOutcome.BUSY:
                        pass
            await trio.sleep(RETRY_S)
        return (Outcome.UNKNOWN if may_be_committed else Outcome.FAILED), None, detail

    # -- ØMQ Raft ------------------------------------------------------------------------------------------------------

    def _curve(self) -> CurveClient:
        key = self.access.curve
        return CurveClient(self.access.endpoint.public, key.public, key.secret)

    async def update(self, number: int) -> None:
        """Send updates until the end of the load."""
        async with zmq_raft.connect(_zmq_urls(), IDENT, curve=self._curve()) as client:
            while True:
                await self.pause()
                if self.is_ended:
                    return
                key, value = self.next_write()
                called_ns = time.monotonic_ns()
                outcome, index, detail = await self._updated(client, key, value)
                self.history.add(
                    Operation(
                        Protocol.ZMQ,
                        f"updater-{number}",
                        value,
                        key,
                        called_ns,
                        time.monotonic_ns(),
                        outcome,
                        index,
                        {},
                        detail,
                    )
                )

    async def _updated(self, client: zmq_raft.ZmqRaftClient, key: int, value: int) -> tuple[Outcome, int | None, str]:
        request, detail = client.make_request_id(), ""
        for attempt in range(ATTEMPTS):
            try:
                return Outcome.OK, await client.update(entry(key, value), request, timeout_s=ORDER_S), ""
            except zmq_raft.RequestExpiredError as error:
                return (Outcome.UNKNOWN if attempt else Outcome.FAILED), None, str(error)
            except zmq_raft.NoAnswerError as error:
                detail = str(error)
        return Outcome.UNKNOWN, None, detail

    async def subscribe(self, received: list[tuple[int, bytes]]) -> None:
        """Receive every entry of the log; add it to `received`. Other entries than updates are empty."""
        async with zmq_raft.connect(_zmq_urls(), IDENT, curve=self._curve()) as client:
            while True:
                last = received[-1][0] if received else 0
                with suppress(zmq_raft.ClientError):
                    async with aclosing(client.subscribe(last)) as entries:
                        async for each in entries:
                            if isinstance(each, CommittedEntry):
                                is_state = each.kind is LogEntryKind.STATE
                                received.append((each.index, each.data if is_state else b""))
                await trio.sleep(RETRY_S)

    # -- Kafka ---------------------------------------------------------------------------------------------------------

    def _job(self, numbers: Sequence[int]) -> str:
        return json.dumps(
            {
                "servers": [f"{address(number)}:{KAFKA_PORT}" for number in numbers],
                "user": USER,
                "password": self.access.password,
                "certificate": str(self.access.certificate),
                "topic": TOPIC,
            }
        )

    async def produce(self, number: int, log: Path) -> None:
        """Produce records until the end of the load."""
        numbers = self._random.sample(NUMBERS, len(NUMBERS))
        with log.open("ab") as errors:
            process = await trio.lowlevel.open_process(
                _kafka("produce", self._job(numbers)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        lines = _lines(process.stdout)
        try:
            while True:
                await self.pause()
                if self.is_ended:
                    return
                key, value = self.next_write()
                request = json.dumps({"entry": entry(key, value).decode()})
                await process.stdin.send_all(request.encode() + b"\n")
                result = json.loads(await anext(lines))
                self.history.add(
                    Operation(
                        Protocol.KAFKA,
                        f"producer-{number}",
                        value,
                        key,
                        result["called"],
                        result["answered"],
                        Outcome(result["outcome"]),
                        result.get("index"),
                        {},
                        result.get("detail", ""),
                    )
                )
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()

    def start_consumer(self, first: int, output: Path, log: Path) -> "subprocess.Popen[bytes]":
        """Start a consumer that begins at the listener of one node; its records are lines of `output`."""
        numbers = [first, *(number for number in NUMBERS if number != first)]
        with output.open("wb") as records, log.open("ab") as errors:
            return subprocess.Popen(
                _kafka("consume", self._job(numbers)), stdin=subprocess.DEVNULL, stdout=records, stderr=errors, cwd=ROOT
            )

    # -- reads ---------------------------------------------------------------------------------------------------------

    async def read(self, number: int, received: "ReadLog") -> None:
        """Read all registers until the end of the load."""
        while True:
            await self.pause()
            if self.is_ended:
                return
            node, called_ns = self.any_node(), time.monotonic_ns()
            try:
                async with ControlClient(node.socket, CONNECT_S, order_timeout_s=ORDER_S) as client:
                    index = await _read_up(client, received)
            except ControlError:
                continue
            found = dict.fromkeys(range(1, KEYS + 1), 0) | received.at(index)
            self.history.add(
                Operation(
                    Protocol.GARLIC_FARM,
                    f"reader-{number}",
                    None,
                    0,
                    called_ns,
                    time.monotonic_ns(),
                    Outcome.OK,
                    index,
                    found,
                    node.name,
                )
            )


class ReadLog:
    """The entries that a reader has received, and the registers after the last of them."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, bytes]] = []
        self._registers: dict[int, int] = {}
        self._seen: set[int] = set()

    @property
    def last(self) -> int:
        return self.entries[-1][0] if self.entries else 0

    def add(self, index: int, data: bytes) -> None:
        """Add the next entry; of each value the first copy counts."""
        self.entries.append((index, data))
        write = written(data)
        if write is not None and write[1] not in self._seen:
            self._seen.add(write[1])
            self._registers[write[0]] = write[1]

    def at(self, index: int) -> dict[int, int]:
        """Return the registers after the entry at `index`, which is rarely below the last one."""
        if index >= self.last:
            return self._registers.copy()
        earlier = ReadLog()
        for each in self.entries:
            if each[0] <= index:
                earlier.add(*each)
        return earlier.at(index)


async def _read_up(client: ControlClient, received: ReadLog) -> int:
    """Read the log up to the commit index of a linearizable reply; return that index."""
    page = await client.log(received.last + 1, PAGE, linearizable=True)
    index = page.commit_index
    while True:
        for each in page.entries:
            received.add(each.index, each.data)
        if not page.entries or page.next_index > index:
            return index
        page = await client.log(page.next_index, PAGE)


def read_consumer(path: Path) -> list[tuple[int, bytes]]:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [(offset + 1, value.encode()) for offset, value in records]


def _zmq_urls() -> list[str]:
    return [f"tcp://{address(number)}:{ZMQ_PORT}" for number in NUMBERS]


def _kafka(role: str, job: str) -> list[str]:
    return [sys.executable, "-m", "tests.soak.jepsen.kafka_process", role, job]


async def _lines(stream: trio.abc.ReceiveStream) -> AsyncGenerator[bytes, None]:
    rest = b""
    async for data in stream:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line
