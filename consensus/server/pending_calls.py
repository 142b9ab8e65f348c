"""The pending calls of this server: one table, from a call's number to the waiting task.

    request of a peer                 ended by       Send of the reply with the same correlation
    batch of proposals                               ProposalResolved
    change of the configuration                      ConfigurationResolved
    linearizable read                                ReadReady, ReadRefused
    transfer of leadership                           TransferEnded
    read of this server's storage                    the disk

The number of a call is the correlation of its request or the id in its event, and its reply repeats it. All numbers
come from one counter (`interfaces.next_call`), so one table holds all kinds. Each kind has its own limit; otherwise a
peer that floods this server with requests would keep clients from reading.

If a caller leaves, its reply is dropped. If the server stops, `on_reply(None)` ends each waiting call, and `ask` raises
`ServerStoppedError`.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import trio
from msgspec import Struct

from consensus.core.effects import ConfigurationResolved, ProposalResolved, ReadReady, ReadRefused, TransferEnded
from consensus.core.messages import Reply
from consensus.server.callbacks import log_failure
from consensus.server.errors import ServerBusyError, ServerStoppedError
from consensus.server.interfaces import next_call
from consensus.server.options import ServerOptions
from consensus.storage.jobs import StorageReadResult

T = TypeVar("T")


class CallbackResult(Generic[T]):
    """A value that a callback passes to a waiting task; None if the server stops."""

    def __init__(self) -> None:
        self._value: T | None = None
        self._given = trio.Event()

    def give(self, value: T | None) -> None:
        """Wake the waiting task.

        Only the first value counts, because the server may stop before the task takes the value.
        """
        if not self._given.is_set():
            self._value = value
            self._given.set()

    async def wait(self) -> T | None:
        """Return the value, or None."""
        await self._given.wait()
        return self._value


class CallKind(Struct, Generic[T], eq=False):
    """One kind of call; `T` is the type of its reply."""

    name: str
    limit: int
    waiting: int = 0


class PendingCalls:
    """The table."""

    def __init__(self, options: ServerOptions) -> None:
        self.requests = CallKind[Reply]("requests", options.max_requests)
        self.reads = CallKind[ReadReady | ReadRefused]("linearizable reads", options.max_requests)
        self.transfers = CallKind[TransferEnded]("transfers of leadership", options.max_requests)
        self.changes = CallKind[ConfigurationResolved]("changes of the configuration", options.max_changes)
        self.batches = CallKind[ProposalResolved]("batches of proposals", options.max_proposals)
        self.log_reads = CallKind[StorageReadResult]("reads of the log", options.max_reads)
        self.own_reads = CallKind[StorageReadResult]("reads for the state machine", options.max_reads)
        self.ended = False
        self._waiting: dict[int, tuple[CallKind[Any], Callable[[Any], None]]] = {}

    def begin(self, kind: CallKind[T], number: int, on_reply: Callable[[T | None], None]) -> None:
        """Register a call before it is made, because the reply may arrive during the call.

        Raises `ServerStoppedError`, or `ServerBusyError` if too many calls of this kind wait.
        """
        if self.ended:
            raise ServerStoppedError("the server has stopped")
        if kind.waiting >= kind.limit:
            raise ServerBusyError(f"{kind.waiting} {kind.name} are under way")
        if number in self._waiting:
            raise ValueError(f"a call with the number {number} is under way; take another from next_call")
        kind.waiting += 1
        self._waiting[number] = kind, on_reply

    async def ask(self, kind: CallKind[T], make: Callable[[int], bool]) -> T:
        """Begin a call by `make(number)`, and wait for the reply. `make` returns False if room is lacking.

        Raises `ServerStoppedError` or `ServerBusyError`.
        """
        number = next_call()
        result: CallbackResult[T] = CallbackResult()
        self.begin(kind, number, result.give)
        try:
            if not make(number):
                raise ServerBusyError("too many events wait")
            answer = await result.wait()
        finally:
            self.forget(number)
        if answer is None:
            raise ServerStoppedError("the server has stopped")
        return answer

    def answer(self, number: int, answer: object) -> None:
        """Pass the result to the caller, if it still waits."""
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            kind, on_reply = waiting
            kind.waiting -= 1
            try:
                on_reply(answer)
            except Exception as error:  # noqa: BLE001 - logged
                log_failure(on_reply, error)

    def forget(self, number: int) -> None:
        """Stop waiting for this reply."""
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting[0].waiting -= 1

    def end(self) -> None:
        """Stop: `on_reply(None)` ends each waiting call."""
        self.ended = True
        while self._waiting:
            self.answer(next(iter(self._waiting)), None)
