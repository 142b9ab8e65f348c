"""Limits on the bytes of requests that are incomplete or unanswered: for one server, all servers, and all other peers.

                       a proven server                              any other peer
    its request        waits until all of it has room               its bytes are taken as they come
    the budget is full its connection waits for room                the source that holds most loses a connection

A server's request of up to `FREE_BYTES` is not counted; votes and heartbeats are smaller. The first `FREE_BYTES` of any
other peer's connection are not counted; ordinary submissions are smaller. A server is proven if it has authenticated as
a member.

A larger request of a server reserves room for all of its bytes before its remaining bytes are read. So two requests
cannot each hold half of the budget and wait for the other half. A request with reserved room waits only for its own
bytes and this server's disk. So it always gets a reply and releases its room. Clients have a separate budget. Their
replies wait for commitment and therefore for the leader's appends, so these appends must never wait for clients. One
server gets at most a part of the servers' budget, so a hostile server that sends its bytes one by one delays only
itself.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

import trio
from msgspec import Struct, field

FREE_BYTES: Final = 64 * 1024
"""Bytes that any connection may hold: one read of the stream."""


class BudgetOptions(Struct, frozen=True):
    """Limits for all servers, for one server, and for all others.

    A request above a limit is admitted when no other bytes are held.
    """

    servers_bytes: int = 64 * 2**20
    per_server_bytes: int = 24 * 2**20
    others_bytes: int = 32 * 2**20


class Account(Struct, eq=False):
    """The bytes of one connection. `owner` is a server's identity, or the address of any other peer."""

    owner: str
    is_server: bool
    close: Callable[[], None]
    """Closes the connection, to free its bytes."""
    used_bytes: int = 0


class _PendingReceipt(Struct, eq=False):
    account: Account
    size: int
    admitted: trio.Event = field(default_factory=trio.Event)


class ReceiveBudget:
    """The budget of one listening server."""

    def __init__(self, options: BudgetOptions | None = None) -> None:
        self._options = options or BudgetOptions()
        self._servers: Counter[str] = Counter()
        self._others: dict[Account, None] = {}
        self._others_bytes = 0
        self._waiting: list[_PendingReceipt] = []

    @property
    def servers_bytes(self) -> int:
        """Return the number of bytes held by proven servers."""
        return self._servers.total()

    @property
    def others_bytes(self) -> int:
        """Return the number of bytes held by other peers."""
        return self._others_bytes

    def open(self, owner: str, *, is_server: bool, close: Callable[[], None]) -> Account:
        """Return an account for a connection; release it with `end`."""
        return Account(owner, is_server, close)

    async def reserve(self, account: Account, size: int) -> None:
        """Wait until there is room for a request of `size` bytes of a proven server, and take it."""
        if self._waiting or not self._fits(account, size):
            waiting = _PendingReceipt(account, size)
            self._waiting.append(waiting)
            # If all waiting requests belong to servers at their own limit, this request is admitted now.
            self._admit()
            try:
                await waiting.admitted.wait()
            except BaseException:
                if waiting.admitted.is_set():
                    self.release(account, size)
                else:
                    self._waiting.remove(waiting)
                raise
            return
        self._take(account, size)

    def release(self, account: Account, size: int) -> None:
        """Release the bytes of a proven server's request after its reply."""
        account.used_bytes -= size
        self._servers[account.owner] -= size
        if not self._servers[account.owner]:
            del self._servers[account.owner]
        self._admit()

    def hold(self, account: Account, used_bytes: int) -> None:
        """Record that a connection of another peer holds `used_bytes` now. Beyond the limit, connections are closed."""
        counted = max(0, used_bytes - FREE_BYTES)
        self._others_bytes += counted - account.used_bytes
        account.used_bytes = counted
        if not counted:
            self._others.pop(account, None)
            return
        self._others.setdefault(account)
        while self._others_bytes > self._options.others_bytes and len(self._others) > 1:
            self._close_one()

    def end(self, account: Account) -> None:
        """Release the account of a closed connection."""
        if not account.is_server:
            self.hold(account, 0)
        elif account.used_bytes:
            self.release(account, account.used_bytes)

    def _close_one(self) -> None:
        """Close one connection of the source that holds most: its connection with the oldest counted bytes.

        This source is probably faulty or hostile, because the requests of correct clients are complete within moments.
        """
        bytes_by_owner: Counter[str] = Counter()
        for account in self._others:
            bytes_by_owner[account.owner] += account.used_bytes
        most = max(bytes_by_owner.values())
        oldest = next(account for account in self._others if bytes_by_owner[account.owner] == most)
        self.hold(oldest, 0)
        oldest.close()

    def _fits(self, account: Account, size: int) -> bool:
        own = self._servers[account.owner]
        if own and own + size > self._options.per_server_bytes:
            return False
        all_bytes = self._servers.total()
        return not all_bytes or all_bytes + size <= self._options.servers_bytes

    def _take(self, account: Account, size: int) -> None:
        account.used_bytes += size
        self._servers[account.owner] += size

    def _admit(self) -> None:
        """Admit the waiting requests that fit now, in the order of their arrival."""
        for waiting in list(self._waiting):
            if self._fits(waiting.account, waiting.size):
                self._waiting.remove(waiting)
                self._take(waiting.account, waiting.size)
                waiting.admitted.set()
