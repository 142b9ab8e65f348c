"""Queries of a router through a connection without a session: its presence, its clock, destinations of hashes.

The connection is kept and opened again after a loss. A measurement shows if this router can look up the destination of
a hash at present, and how long the look-up takes. A successful look-up finds a lease set, so it also shows that the
destination's tunnels work. A lease set lasts ten minutes, and only built tunnels renew it. Single look-ups fail
regularly, so only two failures in a row count as unreachable.

I2CP does not report the version of the lease set. i2pd looks up only ordinary lease sets, so it cannot show if a Meta
LeaseSet2 is present.
"""

from collections import OrderedDict
from hashlib import sha256
from random import Random
from typing import Final

import trio
from msgspec import Struct

from bridge.node.router.i2cp_connection import I2cpConnection, RouterDate, open_i2cp
from bridge.node.router.i2cp_publishing import I2cpAccess
from bridge.node.router.link import RouterLost
from bridge.node.router.router import MeasuredStatus
from consensus.net import Backoff

FOUND: Final = 0
NOT_FOUND: Final = 1
CONNECT_PATIENCE_S: Final = 6.0
LOOKUP_TIMEOUT_S: Final = 15.0
MEASURED_LIMIT: Final = 256
MEASURED_AGAIN_S: Final = 30.0
FAILURES_FOR_NO: Final = 2
RETRY_FIRST_S, RETRY_LONGEST_S, RETRY_SPREAD = 1.0, 30.0, 0.2


class LookupResult(Struct, frozen=True):
    """The result of the last look-ups of one hash."""

    measured_at_s: float
    fetch_ms: int | None
    failures: int
    """Failed look-ups in a row."""

    @property
    def reachable(self) -> bool | None:
        """True if a lease set is found; None after a single failure, which is not decisive."""
        if not self.failures:
            return True
        return False if self.failures >= FAILURES_FOR_NO else None


class RouterQueries:
    """The queries of one router. `run` it."""

    def __init__(self, access: I2cpAccess) -> None:
        self._access = access
        self._connection: I2cpConnection | None = None
        self._tried = trio.Event()
        self._news = trio.Event()
        self._measured: OrderedDict[bytes, LookupResult] = OrderedDict()
        self._one_lookup = trio.CapacityLimiter(4)
        self.trouble = f"{access.link} has not been reached yet"

    async def run(self) -> None:
        """Keep a connection open until canceled."""
        backoff = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S, Random(), spread=RETRY_SPREAD)
        while True:
            try:
                async with open_i2cp(self._access.link, self._access.credentials, self._ring) as (connection, _):
                    backoff.reset()
                    self._connection = connection
                    self._tried.set()
                    await self._until_ended(connection)
            except RouterLost as error:
                self.trouble = str(error)
            finally:
                self._connection = None
            self._tried.set()
            await trio.sleep(backoff.next_s())

    async def _until_ended(self, connection: I2cpConnection) -> None:
        while connection.ended is None:
            self._news = trio.Event()
            await self._news.wait()
        self.trouble = connection.ended

    def _ring(self) -> None:
        self._news.set()

    async def date(self) -> RouterDate:
        """Read the router's clock now; raise `RouterLost` without a reply."""
        return await (await self._open()).get_date()

    async def _open(self) -> I2cpConnection:
        # Wait only for the first attempt, so that an unreachable router does not delay each report.
        with trio.move_on_after(CONNECT_PATIENCE_S):
            await self._tried.wait()
        if self._connection is None:
            raise RouterLost(self.trouble)
        return self._connection

    def known(self, destination_hash: bytes) -> LookupResult | None:
        """Return the measurement of a hash, if any."""
        return self._measured.get(destination_hash)

    async def measure(self, destination_hash: bytes) -> MeasuredStatus | None:
        """Look a hash up, unless a look-up is newer than `MEASURED_AGAIN_S`; return None without a clear result."""
        found = self._measured.get(destination_hash)
        if found is None or trio.current_time() - found.measured_at_s >= MEASURED_AGAIN_S:
            try:
                async with self._one_lookup:
                    found = await self._look_up(destination_hash, 0 if found is None else found.failures)
            except RouterLost:
                return None
        if found is None or found.reachable is None:
            return None
        return MeasuredStatus(reachable=found.reachable, fetch_ms=found.fetch_ms)

    async def _look_up(self, destination_hash: bytes, failures: int) -> LookupResult | None:
        connection = await self._open()
        began_s = trio.current_time()
        reply = await connection.look_up(destination_hash, LOOKUP_TIMEOUT_S)
        now_s = trio.current_time()
        if reply.result == FOUND and sha256(reply.destination or b"").digest() == destination_hash:
            found = LookupResult(now_s, round((now_s - began_s) * 1000), 0)
        elif reply.result == NOT_FOUND:
            found = LookupResult(now_s, None, failures + 1)
        else:
            return None
        self._measured[destination_hash] = found
        self._measured.move_to_end(destination_hash)
        while len(self._measured) > MEASURED_LIMIT:
            self._measured.popitem(last=False)
        return found
