"""The broadcast of a leader: its PUB socket sends all applied entries to subscribers.

    applied entries ──▶ StateBroadcast with them, in full, immediately    leader only
    nothing for 500 ms ──▶ StateBroadcast without entries                 so that subscribers know that it still leads

Each message names the last applied entry; its own entries end there. So a subscriber detects each gap, even before its
first message, and reads the missing entries by RequestEntries. A subscriber whose queue is full loses messages, and
detects the gap with the next message. So subscribers never delay the log. PUB queues have a limit of messages, not of
bytes. So a message has at most 64 KiB, or one entry.

`BroadcastStateMachine` sends the entries that a peer applies. `broadcast_log` follows a log of another protocol by the
same reads as clients. If entries are compacted before it reads them, for example by an installed snapshot, they are
also a gap.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import trio

from consensus.core.effects import Role, RoleChanged
from consensus.core.log import entry_bytes
from consensus.core.model import Entry, Index, Term
from consensus.protocols.zmq_raft.endpoint.served_log import LogDescription, ServedLog
from consensus.protocols.zmq_raft.wire.codec import encode_broadcast
from consensus.protocols.zmq_raft.wire.messages import StateBroadcast
from consensus.server.errors import ServerBusyError, ServerStoppedError

HEARTBEAT_S: Final = 0.5
_MESSAGE_BYTES: Final = 64 * 1024
_MESSAGE_ENTRIES: Final = 1000
_BUSY_S: Final = 0.05


class AppliedEntries(Protocol):
    """A state machine that reports the entries that it applies."""

    watchers: list[Callable[[Index, tuple[Entry, ...]], None]]

    @property
    def applied(self) -> Index:
        """The index of the last applied entry."""


class FollowedLog(ServedLog, Protocol):
    """A log that reports its growth."""

    async def news(self) -> None:
        """Return when entries may have been applied since the call."""


class BroadcastStateMachine:
    """Broadcasts the entries that `machine` applies while this server leads.

    `send` queues the frames of one message for all subscribers (`ZmqSocket.send`).
    """

    def __init__(
        self,
        send: Callable[[Sequence[bytes]], bool],
        ident: bytes,
        machine: AppliedEntries,
        role: RoleChanged,
    ) -> None:
        self._send = send
        self._ident = ident
        self._machine = machine
        self._term: Term | None = None
        self._sent_s = 0.0
        machine.watchers.append(self._applied)
        self.role_changed(role)

    def role_changed(self, role: RoleChanged) -> None:
        """Record the role. A new leader sends its last applied index immediately."""
        term = role.term if role.role is Role.LEADER else None
        if term != self._term:
            self._term = term
            self._broadcast(self._machine.applied, ())

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send the heartbeats until canceled."""
        task_status.started()
        while True:
            await trio.sleep_until(self._sent_s + HEARTBEAT_S)
            if trio.current_time() >= self._sent_s + HEARTBEAT_S:
                self._broadcast(self._machine.applied, ())

    def _applied(self, first: Index, entries: tuple[Entry, ...]) -> None:
        if self._term is None:
            return
        for part in _parts(entries):
            first += len(part)
            self._broadcast(first - 1, part)

    def _broadcast(self, last_applied: Index, entries: tuple[Entry, ...]) -> None:
        self._sent_s = trio.current_time()
        if self._term is not None:
            self._send(
                encode_broadcast(
                    StateBroadcast(ident=self._ident, term=self._term, last_applied=last_applied, entries=entries)
                )
            )


def _parts(entries: tuple[Entry, ...]) -> Iterator[tuple[Entry, ...]]:
    """Yield the entries in order, in as few parts as the bounds of a message permit."""
    start = size_bytes = 0
    for at, entry in enumerate(entries):
        size_bytes += entry_bytes(entry)
        if at > start and (size_bytes > _MESSAGE_BYTES or at - start == _MESSAGE_ENTRIES):
            yield entries[start:at]
            start, size_bytes = at, entry_bytes(entry)
    if start < len(entries):
        yield entries[start:]


async def broadcast_log(log: FollowedLog, ident: bytes, send: Callable[[Sequence[bytes]], bool]) -> None:
    """Broadcast entries applied from now on, until canceled, while this server serves clients as the leader.

    Entries applied before it leads are left out: a server that starts replays its whole log.
    """
    sent: Index | None = None
    while True:
        now = log.describe()
        if not now.is_leader:
            sent = None
        elif sent is None:
            sent = now.last_applied
        elif now.last_applied > sent:
            sent = await _broadcast_next(log, ident, send, sent, now)
            continue
        with trio.move_on_after(HEARTBEAT_S) as scope:
            await log.news()
        now = log.describe()
        if scope.cancelled_caught and now.is_leader and now.last_applied == sent:
            send(encode_broadcast(StateBroadcast(ident=ident, term=now.term, last_applied=sent)))


async def _broadcast_next(
    log: FollowedLog, ident: bytes, send: Callable[[Sequence[bytes]], bool], sent: Index, now: LogDescription
) -> Index:
    """Send some entries after `sent`; returns the index of the last one."""
    try:
        entries = await log.read(sent + 1, min(_MESSAGE_ENTRIES, now.last_applied - sent), _MESSAGE_BYTES)
    except (ServerBusyError, ServerStoppedError):
        await trio.sleep(_BUSY_S)
        return sent
    # The read is empty if the entries are compacted; subscribers then read the snapshot.
    last = sent + len(entries) if entries else now.last_applied
    send(encode_broadcast(StateBroadcast(ident=ident, term=now.term, last_applied=last, entries=entries)))
    return last
