"""The command line of an operator in a world. Its requests go to the nodes on virtual time.

    CommandLine.at("node-1", "keys", "export", FILE)    the real command, with `--node` for the socket of that node

A thread runs the command, while virtual time does not advance. The world's own task sends its requests, one at a time,
and returns the replies to the thread.
"""

import queue
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import trio
from click.testing import CliRunner, Result

from bridge.api.json import DOCUMENT_LIMIT_BYTES
from bridge.cli import farm as farm_module
from bridge.cli import node_queries
from bridge.cli.main import cli
from bridge.node.control.client import ControlClient
from bridge.node.inviting import inviting as inviting_module
from bridge.node.inviting.listener import PORT
from bridge.node.security.control_socket import SOCKET_NAME
from tests.simulation.farm.world import World

WAIT_S: Final = 60.0
"""Longest real time between two requests of a command."""


class RecordedClient(ControlClient):
    """A client that records the paths of its POST requests."""

    def __init__(self, address: Path, posted: set[str]) -> None:
        super().__init__(address)
        self._posted = posted

    async def request(
        self, method: str, target: str, body: bytes = b"", *, limit_bytes: int = DOCUMENT_LIMIT_BYTES
    ) -> tuple[int, bytes]:
        if method == "POST":
            self._posted.add(target.partition("?")[0])
        return await super().request(method, target, body, limit_bytes=limit_bytes)


@dataclass(slots=True)
class CommandLine:
    """The command line of an operator in a world."""

    world: World
    posted: set[str] = field(default_factory=set)
    """The paths of the sent POST requests."""
    _questions: "queue.SimpleQueue[Callable[[], Awaitable[object]] | Result]" = field(default_factory=queue.SimpleQueue)
    _replies: "queue.SimpleQueue[object]" = field(default_factory=queue.SimpleQueue)

    async def run(self, *arguments: str) -> Result:
        thread = Thread(target=lambda: self._questions.put(CliRunner().invoke(cli, arguments)), daemon=True)
        thread.start()
        while not isinstance(question := self._questions.get(timeout=WAIT_S), Result):
            try:
                self._replies.put(await question())
            except Exception as error:  # noqa: BLE001 - the command handles it
                self._replies.put(error)
        thread.join(WAIT_S)
        return question

    async def at(self, name: str, *arguments: str) -> Result:
        return await self.run(*arguments, "--node", str(self.world.hosts[name].directory / SOCKET_NAME))

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the requests and the clock of the commands, and the search for the leader on the same machine."""
        clock = SimpleNamespace(
            monotonic=lambda: self.world.time_s, sleep=lambda each: self._ask(partial(trio.sleep, each))
        )
        with ExitStack() as undo:
            for owner, name, value in (
                (node_queries, "send_request", self._send),
                (node_queries, "call_blocking", self._call),
                (node_queries, "ask_blocking", self._send),
                (node_queries, "_beside", lambda first: (first,)),
                (inviting_module, "_free_port", lambda _: PORT),
                (farm_module, "time", clock),
            ):
                undo.enter_context(patch.object(owner, name, value))
            yield

    def _ask(self, question: Callable[[], Awaitable[object]]) -> Any:
        self._questions.put(question)
        reply = self._replies.get(timeout=WAIT_S)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _send(self, address: Any, question: Callable[[ControlClient], Awaitable[object]], *_timeouts: float) -> Any:
        async def conversation() -> object:
            async with RecordedClient(address, self.posted) as client:
                return await question(client)

        return self._ask(conversation)

    def _call(self, address: Any, route: Any, body: Any = None, *_timeouts: float) -> Any:
        return self._send(address, lambda client: client.call(route, body))
