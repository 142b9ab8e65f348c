"""The broadcast state machine: a leader tells subscribers of each application by a PUB socket.

    applied entries ──▶ StateBroadcast with them, in full, at once      leader only
    nothing for 500 ms ──▶ StateBroadcast without entries               so that subscribers know that it still leads

Each message says which entry was applied last; its own entries end there. So a subscriber sees a gap, also the one
before its first message, and reads what it lacks by RequestEntries. A subscriber whose queue is full loses messages and
finds that gap in the next one: no subscriber holds up the log.

A large application, as after a restart, is told in several messages of at most 64 KiB or one entry: the queues of PUB
sockets are bounded in messages, not in bytes.

Each peer has a PUB socket and names its own (RequestBroadcastStateUrl), as those of the package do. Only that of the
leader sends, so a client asks the leader.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import trio

from consensus.core.effects import Role, RoleChanged
from consensus.core.log import entry_bytes
from consensus.core.model import Entry, Index, Term
from consensus.protocols.zmq_raft.node.executed_requests import ExecutedRequests
from consensus.protocols.zmq_raft.wire.codec import encode_broadcast
from consensus.protocols.zmq_raft.wire.messages import StateBroadcast

HEARTBEAT_S: Final = 0.5
_MESSAGE_BYTES: Final = 64 * 1024
_MESSAGE_ENTRIES: Final = 1000


class BroadcastStateMachine:
    """Broadcasts what `machine` applies, while `role_changed` last said that this server leads.

    `send` queues the frames of one message for all subscribers (`ZmqSocket.send`).
    """

    def __init__(
        self,
        send: Callable[[Sequence[bytes]], bool],
        ident: bytes,
        machine: ExecutedRequests,
        role: RoleChanged,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self._send = send
        self._ident = ident
        self._machine = machine
        self._heartbeat_s = heartbeat_s
        self._term: Term | None = None
        self._sent_s = 0.0
        machine.watchers.append(self._applied)
        self.role_changed(role)

    def role_changed(self, role: RoleChanged) -> None:
        """The server leads now, or another does. A new leader says at once how far it is."""
        term = role.term if role.role is Role.LEADER else None
        if term != self._term:
            self._term = term
            self._tell(self._machine.applied, ())

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send the heartbeats until cancelled."""
        task_status.started()
        while True:
            await trio.sleep_until(self._sent_s + self._heartbeat_s)
            if trio.current_time() >= self._sent_s + self._heartbeat_s:
                self._tell(self._machine.applied, ())

    def _applied(self, first: Index, entries: tuple[Entry, ...]) -> None:
        if self._term is None:
            return
        for part in _parts(entries):
            first += len(part)
            self._tell(first - 1, part)

    def _tell(self, last_applied: Index, entries: tuple[Entry, ...]) -> None:
        self._sent_s = trio.current_time()
        if self._term is not None:
            self._send(encode_broadcast(StateBroadcast(self._ident, self._term, last_applied, entries)))


def _parts(entries: tuple[Entry, ...]) -> Iterator[tuple[Entry, ...]]:
    """The entries in order, in as few parts as the bounds of a message permit."""
    start = size_bytes = 0
    for at, entry in enumerate(entries):
        size_bytes += entry_bytes(entry)
        if at > start and (size_bytes > _MESSAGE_BYTES or at - start == _MESSAGE_ENTRIES):
            yield entries[start:at]
            start, size_bytes = at, entry_bytes(entry)
    if start < len(entries):
        yield entries[start:]
