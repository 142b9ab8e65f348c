"""The client of one farm, as a library.

    async with connect(link) as farm:
        stream = await farm.open_stream()

    SessionPool ──▶ StructureKeeper ──▶ LeafTable ──▶ LeafOpener ──▶ FarmStream ──▶ ReplyWatch
    sessions        the structure       the leaves    the first      one stream     leaves that
    of SAM          in use              by cost       leaf                          do not reply

`FarmClient` connects the parts. A suspect or failed leaf causes a query of the directories. A newer structure without
this leaf ends the streams that have waited for the leaf for half of the timeout. The client opens connections to the
SAM bridge only.
"""

import os
import pwd
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import isinf
from pathlib import Path
from random import Random, SystemRandom

import trio

from bridge.connect.opening import LeafOpener
from bridge.connect.reply_watch import ReplyWatch
from bridge.connect.sessions import SessionPool
from bridge.connect.status import ClientCounter, ClientCounters, ClientLeaf, FarmStatus, LastError
from bridge.connect.stream import FarmStream
from bridge.connect.structure_keeper import StructureKeeper
from bridge.core.connecting.leaves import LeafFailure, LeafTable
from bridge.sam.connection import DEFAULT_BRIDGE, SamBridge
from bridge.wire.i2p.farm_link import FarmLink, parse_link
from bridge.wire.i2p.structures import address_of
from consensus import block_nursery

DEFAULT_PATIENCE_S = 5.0
HOPS_MAX = 7
"""The longest tunnel of a Java router; i2pd allows 8."""
READY_TIMEOUT_S = 90.0


def default_cache_dir() -> Path:
    """Return the directory of cached structures: `garlicfarm` in the user's cache directory."""
    given, home = (Path(os.environ.get(name, "")) for name in ("XDG_CACHE_HOME", "HOME"))
    if given.is_absolute():
        return given / "garlicfarm"
    # A relative path would name another directory in each working directory.
    return (home if home.is_absolute() else Path(pwd.getpwuid(os.getuid()).pw_dir)) / ".cache/garlicfarm"


@asynccontextmanager
async def connect(
    link: str | FarmLink,
    *,
    bridge: SamBridge = DEFAULT_BRIDGE,
    cache_dir: Path | None = None,
    patience_s: float = DEFAULT_PATIENCE_S,
    hops: int | None = None,
    unix_s: Callable[[], float] = time.time,
    random: Random | None = None,
) -> AsyncIterator["FarmClient"]:
    """Open a client of the farm that a link names; raise `LinkError`, or `ValueError` for an option.

    `patience_s` is the time to wait for the first byte of a reply. The client waits longer for slow leaves. With
    `is_quick` it may wait less, but at least a fifth of `patience_s`. With infinity, a leaf that received bytes never
    fails because of a missing reply. `hops` is the number of routers in each tunnel of the client, 0 to 7; None leaves
    it to the router (3). `unix_s` is the wall clock. The client ends with the block.
    """
    if not patience_s > 0:
        raise ValueError(f"patience_s must be positive, not {patience_s}")
    if hops is not None and not 0 <= hops <= HOPS_MAX:
        raise ValueError(f"hops must be 0 to {HOPS_MAX}, not {hops}")
    parsed = parse_link(link) if isinstance(link, str) else link
    async with block_nursery() as nursery:
        farm = FarmClient(
            parsed,
            bridge,
            default_cache_dir() if cache_dir is None else cache_dir,
            nursery,
            patience_s=patience_s,
            hops=hops,
            unix_s=unix_s,
            random=SystemRandom() if random is None else random,
        )
        farm.start(nursery)
        yield farm


class FarmClient:
    """A client of one farm; made by `connect`."""

    def __init__(
        self,
        link: FarmLink,
        bridge: SamBridge,
        cache_dir: Path,
        nursery: trio.Nursery,
        *,
        patience_s: float,
        hops: int | None,
        unix_s: Callable[[], float],
        random: Random,
    ) -> None:
        self.link = link
        self.counters = ClientCounters()
        self._unix_s = unix_s
        self._error = LastError()
        self._table = LeafTable(patience_s)
        self._pool = SessionPool(bridge, self.counters, self._error, random, hops=hops)
        self._keeper = StructureKeeper(
            link,
            self._table,
            self._pool,
            self.counters,
            self._error,
            random,
            cache_dir=cache_dir,
            unix_s=unix_s,
            on_withdrawn=self._withdrawn,
        )
        self._watch = ReplyWatch(table=self._table, on_suspect=self._suspect, on_failed=self._failed)
        self._opener = LeafOpener(
            table=self._table,
            pool=self._pool,
            keeper=self._keeper,
            counters=self.counters,
            random=random,
            nursery=nursery,
            unix_s=unix_s,
            on_suspect=self._suspect,
            on_failed=self._failed,
        )

    @property
    def address(self) -> str:
        """The `.b32.i2p` address of the farm."""
        return self.link.address

    def start(self, nursery: trio.Nursery) -> None:
        """Start the tasks that keep sessions, the structure and the watch over replies."""
        nursery.start_soon(self._pool.run)
        nursery.start_soon(self._keeper.run)
        nursery.start_soon(self._watch.run)

    async def open_stream(self, *, is_quick: bool = False) -> FarmStream:
        """Open a stream to a leaf; raise `ConnectError`.

        Waits for a session and a structure if the client has just started. With `is_quick` the timeout may fall below
        `patience_s` for leaves with quick replies: for requests whose repetition does no harm.
        """
        return FarmStream(await self._opener.open(), self._watch, self._opener, is_quick=is_quick)

    async def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until a session and a usable structure are ready; raise `ConnectError` after `timeout_s`."""
        deadline_s = trio.current_time() + timeout_s
        await self._pool.session(timeout_s)
        await self._keeper.wait_usable(deadline_s - trio.current_time())

    async def refresh(self) -> None:
        """Query the directories now; raise `ConnectError` if none returns a usable structure."""
        await self._keeper.query()

    def status(self) -> FarmStatus:
        """Return the state of the client."""
        newest, unix_s = self._keeper.newest, self._unix_s()
        problem = self._pool.problem or self._keeper.problem
        return FarmStatus(
            address=self.address,
            bridge=str(self._pool.bridge),
            demo=newest is not None and newest.demo,
            ready=problem is None,
            problem=problem,
            published_s=None if newest is None else newest.published_s,
            structure_age_s=None if newest is None else unix_s - newest.published_s,
            structure_ends_in_s=None if newest is None else newest.ends_s - unix_s,
            leaves=self._leaves(unix_s),
            directories=self._keeper.directories.status(),
            sessions=self._pool.count,
            streams=self._opener.streams,
            counters={each.value: self.counters[each] for each in ClientCounter},
            last_error=self._error.text,
        )

    def _leaves(self, unix_s: float) -> tuple[ClientLeaf, ...]:
        now_s = trio.current_time()
        leaves = []
        for record in self._table.listed():
            timeout_s = self._table.timeout_s(record.hash)
            leaves.append(
                ClientLeaf(
                    address=address_of(record.hash),
                    cost=record.cost,
                    ends_in_s=record.ends_s - unix_s,
                    state=record.state(now_s, unix_s),
                    patience_s=None if isinf(timeout_s) else timeout_s,
                    reply_s=record.times.typical_s,
                    successes=record.successes,
                    failures=record.failures,
                    streams=record.streams,
                    last_failure=record.last_failure,
                )
            )
        return tuple(leaves)

    def _suspect(self, leaf_hash: bytes) -> None:
        self._table.suspect(leaf_hash, trio.current_time())
        self._keeper.request_refresh()

    def _failed(self, leaf_hash: bytes, failure: LeafFailure) -> None:
        # Streams fail first, because a failure may raise the timeouts.
        self._end_overdue(leaf_hash, failure.reason)
        self._table.failed(leaf_hash, failure, trio.current_time())
        self._error.text = failure.reason
        self._keeper.request_refresh()

    def _withdrawn(self, leaves: tuple[bytes, ...]) -> None:
        for leaf_hash in leaves:
            self._end_overdue(leaf_hash, f"{address_of(leaf_hash)} did not reply, and the farm has withdrawn it")

    def _end_overdue(self, leaf_hash: bytes, reason: str) -> None:
        self.counters[ClientCounter.STREAMS_SILENT] += self._watch.fail_overdue(leaf_hash, reason)
