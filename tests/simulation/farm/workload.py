"""Clients of a trial: they write unique values to a few keys under request ids, read the log, and send commands.

    Client.run    one call after the other, on any node; a write without a positive result is repeated on any node
    Call          its times, its request and its result, for `checks`

A write is an entry `{"key": K, "value": V}`. Its request id makes repetitions count once. A read is linearizable, and
takes the log up to its commit index: a key has the value of its last write there.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from random import Random
from typing import Final

import trio

from bridge.api.control import SubmitOutcome
from bridge.api.control_routes import COMMANDS, TRANSFER
from bridge.api.requests import CommandRequest, CostOrder, ExclusionOrder, TransferRequest
from bridge.node.control.client import ControlClient, ControlError

KEYS: Final = 3
PAUSE_S: Final = 2.0
"""Mean time between two calls of a client."""
ATTEMPTS: Final = 4
RETRY_S: Final = 1.0
PAGE: Final = 1000

Applied = tuple[int, int, bytes]
"""Term, kind and data of an entry."""
ClientOf = Callable[[str], AbstractAsyncContextManager[ControlClient]]


class Kind(Enum):
    """Kind of a call."""

    WRITE = "write"
    READ = "read"
    EXCLUDE = "exclude"
    INCLUDE = "include"
    COST = "cost"
    TRANSFER = "transfer"


@dataclass(slots=True)
class Call:
    """One call of a client. The moments of all calls of a trial differ."""

    client: str
    kind: Kind
    called: int
    called_s: float
    key: int = 0
    value: int = 0
    request: str = ""
    answered: int | None = None
    answered_s: float | None = None
    index: int | None = None
    """Index of an acknowledged write; the commit index of a read."""
    found: dict[int, int] = field(default_factory=dict)
    """The values that a read found, by key."""
    error: str = ""

    @property
    def is_acknowledged(self) -> bool:
        """Return True if the call has a positive result."""
        return self.answered is not None


class Calls:
    """All calls of a trial, in the order of their starts."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.all: list[Call] = []
        self._now_s = now_s
        self._moments = count(1)
        self._values = count(1)
        self.recovered_at = 0
        """The moment of the last recovery."""

    def begin(self, client: str, kind: Kind, key: int = 0) -> Call:
        value = next(self._values) if kind is Kind.WRITE else 0
        call = Call(client, kind, next(self._moments), self._now_s(), key=key, value=value)
        self.all.append(call)
        return call

    def recovered(self) -> None:
        """Record that the log may lack its last entries from now on: readers begin at its start."""
        self.recovered_at = next(self._moments)

    def answer(self, call: Call) -> None:
        """Record the positive result of a call."""
        call.answered, call.answered_s = next(self._moments), self._now_s()


class Client:
    """One client."""

    def __init__(
        self,
        name: str,
        random: Random,
        nodes: list[str],
        client_of: ClientOf,
        calls: Calls,
        leaves: Callable[[], list[str]],
        committed: Mapping[int, Applied],
    ) -> None:
        """`leaves` returns the destinations for commands; `committed` has the entries that snapshots replace."""
        self.name = name
        self._random = random
        self._nodes = nodes
        self._client_of = client_of
        self._calls = calls
        self._born: int | None = None
        self._numbers = count(1)
        self._found: dict[int, int] = {}
        self._seen: set[str] = set()
        """Requests in the log so far: a reader counts each of them once."""
        self._next = 1
        self._began = 0
        """The last recovery that this reader has noticed."""
        self._leaves = leaves
        self._committed = committed

    async def run(self) -> None:
        """Make calls until canceled."""
        while True:
            await trio.sleep(self._random.expovariate(1 / PAUSE_S))
            await self.call(self._kind())

    def _kind(self) -> Kind:
        drawn = self._random.random()
        if drawn < 0.6:
            return Kind.WRITE
        if drawn < 0.9:
            return Kind.READ
        return self._random.choice([Kind.EXCLUDE, Kind.INCLUDE, Kind.INCLUDE, Kind.COST, Kind.TRANSFER])

    async def call(self, kind: Kind) -> Call:
        call = self._calls.begin(self.name, kind, self._random.randrange(KEYS))
        try:
            match kind:
                case Kind.WRITE:
                    await self._write(call)
                case Kind.READ:
                    await self._read(call)
                case _:
                    await self._command(call)
        except ControlError as error:
            call.error = str(error)
        return call

    def _node(self) -> str:
        return self._random.choice(self._nodes)

    async def _write(self, call: Call) -> None:
        if self._born is None:
            async with self._client_of(self._node()) as client:
                self._born = max(1, (await client.cluster()).commit_index)
        call.request = f"{self.name}-{self._born}-{next(self._numbers)}"
        entry = json.dumps({"key": call.key, "value": call.value}).encode()
        for _ in range(ATTEMPTS):
            try:
                async with self._client_of(self._node()) as client:
                    answer = await client.submit(entry, call.request)
            except ControlError as error:
                call.error = str(error)
            else:
                call.error = f"{answer.outcome.value}: {answer.reason}"
                if answer.outcome is SubmitOutcome.COMMITTED:
                    call.index, call.error = answer.index, answer.reason
                    self._calls.answer(call)
                    return
                if answer.outcome is SubmitOutcome.EXPIRED:
                    self._born, self._numbers = None, count(1)
                    return
            await trio.sleep(RETRY_S)

    async def _read(self, call: Call) -> None:
        if self._began != self._calls.recovered_at:
            self._began, self._found, self._seen, self._next = self._calls.recovered_at, {}, set(), 1
        async with self._client_of(self._node()) as client:
            page = await client.log(self._next, PAGE, linearizable=True)
            commit_index = page.commit_index
            found, seen, after = dict(self._found), set(self._seen), self._next
            while True:
                for index in range(after, page.first_index):
                    _take(found, seen, self._committed[index][2])
                after = max(after, page.first_index)
                for entry in page.entries:
                    _take(found, seen, entry.data)
                    after = entry.index + 1
                if not page.entries or after > commit_index:
                    break
                page = await client.log(after, PAGE)
        if self._began != self._calls.recovered_at:
            raise ControlError("the farm was recovered during the read")
        self._found, self._seen, self._next = found, seen, after
        call.found, call.index = dict(found), commit_index
        self._calls.answer(call)

    async def _command(self, call: Call) -> None:
        leaves = self._leaves()
        leaf = self._random.choice(leaves) if leaves else None
        async with self._client_of(self._node()) as client:
            if call.kind is Kind.TRANSFER:
                await client.call(TRANSFER, TransferRequest())
            elif leaf is None:
                return
            elif call.kind is Kind.COST:
                await client.call(COMMANDS, CommandRequest(cost=CostOrder(leaf, self._random.choice([0.5, 1.0, 2.0]))))
            else:
                excluded = call.kind is Kind.EXCLUDE
                call.request = leaf
                await client.call(COMMANDS, CommandRequest(exclusion=ExclusionOrder(leaf, excluded)))
        self._calls.answer(call)


def _take(found: dict[int, int], seen: set[str], data: bytes) -> None:
    written = written_in(data)
    if written is not None and (request := request_in(data)) not in seen:
        seen.add(request)
        found[written[0]] = written[1]


def written_in(data: bytes) -> tuple[int, int] | None:
    """Return key and value of a write; None for other entries."""
    if not data.startswith(b"{") or b'"value"' not in data:
        return None
    try:
        entry = json.loads(data)
    except ValueError:
        return None
    key, value = entry.get("key"), entry.get("value")
    return (key, value) if isinstance(key, int) and isinstance(value, int) else None


def request_in(data: bytes) -> str:
    return str(json.loads(data).get("request", ""))
