"""The processor time of one server by kind of work, for `consensus_split`: wrappers around methods, and an instrument.

    loop │ wait │ step of a task: rest of the task, or the kind of the innermost wrapped method │ loop …

Each interval of the loop's thread belongs to exactly one kind. The remaining time of the process is time of other
threads: writes and syncs. The cost of a wrapper's call is measured at the start, and counted as a separate kind.
"""

import gc
import os
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from time import thread_time_ns
from typing import Any, Final

import trio

from benchmarks.task_times import LOOP, LoopTimes
from consensus.core.raft import Raft
from consensus.net.direct_stream import DirectStream
from consensus.net.tls_stream import TlsStream
from consensus.protocols.garlic_farm.node import connection, links
from consensus.protocols.garlic_farm.node.client_requests import ClientRequests
from consensus.protocols.garlic_farm.node.connection import ServerConnection
from consensus.protocols.garlic_farm.node.request_encoder import RequestEncoder
from consensus.protocols.garlic_farm.wire.codec import ReplyReader, RequestReader
from consensus.server.applying import Applying
from consensus.server.batching import Batches
from consensus.server.event_loop import EventLoop
from consensus.server.executor import Executor
from consensus.server.pending_calls import PendingCalls
from consensus.server.server import ConsensusServer
from consensus.storage.disk_thread import DiskThread
from consensus.storage.disk_worker import DiskWorker

MEASUREMENT, GARBAGE = "the measurement itself", "collector of garbage"
DECODE, ENCODE, SUBMIT = "decode", "encode", "submission of a client's request"
TURN, STEP, EFFECTS = "turns of the server: queues, batches", "step of the core", "effects of a step"
DISK, CONNECTIONS = "disk: plan and hand-over", "connections: tasks that read and write"
ACKNOWLEDGE, TLS, SOCKET, APPLY = "acknowledgments", "TLS", "socket: read and write", "application"
Methods = tuple[tuple[Any, str, str], ...]
"""Owner, function, and its kind of work."""
_METHODS: Final[Methods] = (
    (RequestReader, "feed", DECODE),
    (RequestReader, "next", DECODE),
    (ReplyReader, "next", DECODE),
    (connection, "commands_from_wire", DECODE),
    (connection, "request_from_wire", DECODE),
    (links, "reply_from_wire", DECODE),
    (ServerConnection, "_begin", SUBMIT),
    (ClientRequests, "client_request", SUBMIT),
    (Batches, "submit", TURN),
    (EventLoop, "_run_pending", TURN),
    (Raft, "step", STEP),
    (ConsensusServer, "_carry_out", EFFECTS),
    (RequestEncoder, "encode", ENCODE),
    (connection, "encode_reply", ENCODE),
    (connection, "reply_to_wire", ENCODE),
    (PendingCalls, "answer", ACKNOWLEDGE),
    (Batches, "_resolve_batch", ACKNOWLEDGE),
    (ServerConnection, "_settle", ACKNOWLEDGE),
    (Executor, "persist", DISK),
    (Executor, "next_job", DISK),
    (Executor, "written", DISK),
    (DiskWorker, "submit", DISK),
    (DiskThread, "begin", DISK),
    (TlsStream, "_accept", TLS),
    (TlsStream, "_decrypt", TLS),
    (DirectStream, "_push", SOCKET),
    (os, "read", SOCKET),
    (Applying, "push", APPLY),
)
_TASKS: Final = {"ConsensusServer.run": TURN, "<TrioToken.run_sync_soon task>": DISK, "Applying.run": APPLY}
"""The kind of a task's remaining time, by the end of its name. All other frequent tasks read and write connections."""
_CALIBRATION_CALLS: Final = 20_000


class TimeSplit(LoopTimes):
    """The times of this process, divided among the kinds of the innermost wrapped methods."""

    def __init__(self, methods: Methods = _METHODS) -> None:
        super().__init__()
        self._call_ns = 0
        self._call_ns = self._calibrated_ns()
        for owner, name, kind in methods:
            setattr(owner, name, self._timed(getattr(owner, name), kind))
        self._collected_from, self._thread = LOOP, get_ident()
        gc.callbacks.append(self._collect)
        trio.lowlevel.add_instrument(self)

    def kind_of(self, task: trio.lowlevel.Task) -> str:
        """Return the kind of a task's remaining time."""
        return _TASKS.get(".".join(task.name.rsplit(".", 2)[-2:]), CONNECTIONS)

    def _collect(self, phase: str, _: dict[str, int]) -> None:
        if get_ident() != self._thread:
            return
        if phase == "start":
            self._collected_from = self.kind
            self.begin(GARBAGE)
        else:
            self.begin(self._collected_from)

    def _timed(self, method: Callable[..., Any], kind: str) -> Callable[..., Any]:
        @wraps(method)
        def timed(*arguments: object, **options: object) -> object:
            outer = self.kind
            self.begin(kind)
            try:
                return method(*arguments, **options)
            finally:
                self.begin(outer)
                self._spent_ns[outer] -= self._call_ns
                self._spent_ns[MEASUREMENT] += self._call_ns

        return timed

    def _calibrated_ns(self) -> int:
        """Return the cost of a wrapper to the kind around it: the wrapped function does nothing."""
        timed = self._timed(lambda: None, MEASUREMENT)
        began_ns = thread_time_ns()
        for _ in range(_CALIBRATION_CALLS):
            timed()
        return (thread_time_ns() - began_ns) // _CALIBRATION_CALLS
