"""The structure (signed list of leaves) in use: read from the cache or the directories, refreshed before it ends.

    cache ──┐
            ├─▶ decode, verify, refusal ─▶ LeafTable.replace ─▶ on_withdrawn(leaves)
    query ──┘                          └─▶ cache

The cache is one file per address, `<directory>/<52 letters>.meta-ls2`, with the bytes as a directory returned them. The
file may be damaged, so the client verifies its content like a reply. The client does not use an expired structure, but
still refuses structures older than this one. Several clients may share the file, so a client does not overwrite a newer
structure with an older one. A structure stays in use until it expires, even if no directory replies.
"""

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

import trio

from bridge.api.printable import SECOND_MS, duration
from bridge.connect.directories import Directories, DirectoryError, Judgment
from bridge.connect.errors import NoLeafError, NoSessionError
from bridge.connect.sessions import SessionPool
from bridge.connect.status import ClientCounter, ClientCounters, LastError
from bridge.core.connecting.leaves import LeafTable
from bridge.core.connecting.structures import (
    CLOCK_DIFFERENCE_MAX_S,
    CONNECTABLE_KINDS,
    REFRESH_LONGEST_S,
    ListedLeaf,
    OfferedStructure,
    refresh_delay_s,
    refusal,
)
from bridge.sam.connection import SamUnreachableError
from bridge.wire.i2p.farm_link import FarmLink
from bridge.wire.i2p.meta_lease_set import STRUCTURE_LIMIT_BYTES, STRUCTURE_SUFFIX, LeaseSetError, MetaLeaseSet, decode
from bridge.wire.i2p.structure_exchange import ExchangeError, verified_structure
from bridge.wire.i2p.structures import ADDRESS_SUFFIX
from consensus.net import Backoff
from consensus.storage import replace_file

STRUCTURE_WAIT_S: Final = 60.0
LEAST_INTERVAL_S: Final = 5.0
"""Minimum time between two automatic queries; failures of leaves do not shorten it."""
FAILED_FIRST_S: Final = 10.0
"""The first delay while a listed leaf counts as failed: the farm needs some seconds to withdraw it."""
RETRY_FIRST_S: Final = 5.0
RETRY_LONGEST_S: Final = 60.0


class StructureKeeper:
    """The structure of one address, kept current."""

    def __init__(
        self,
        link: FarmLink,
        table: LeafTable,
        pool: SessionPool,
        counters: ClientCounters,
        error: LastError,
        random: Random,
        *,
        cache_dir: Path,
        unix_s: Callable[[], float],
        on_withdrawn: Callable[[tuple[bytes, ...]], None],
    ) -> None:
        self.directories = Directories(link.directories, link.address_hash, random)
        self.path = cache_dir / f"{link.address.removesuffix(ADDRESS_SUFFIX)}{STRUCTURE_SUFFIX}"
        self.newest: OfferedStructure | None = None
        """The newest accepted structure; it may have expired."""
        self._query_failure: str | None = None
        """The reason of the last failed query; None before the first failure, and after a success."""
        self._link = link
        self._table = table
        self._pool = pool
        self._counters = counters
        self._error = error
        self._random = random
        self._unix_s = unix_s
        self._on_withdrawn = on_withdrawn
        self._refresh_request = trio.Event()
        self._one_query = trio.Lock()
        self._one_write = trio.Lock()
        self._finished = trio.Event()
        """Event at the end of the present query, or of reading the cache; another event then replaces it."""
        self._cache_read = trio.Event()
        self._queried_at_s = -LEAST_INTERVAL_S
        self._is_pausing = False
        """True while `run` waits until its next query."""

    @property
    def is_usable(self) -> bool:
        """True if the newest structure has not ended."""
        return self.newest is not None and self.newest.ends_s > self._unix_s()

    def describe(self) -> str:
        """Return the age of the newest structure, and its end if it has ended, for an error."""
        if self.newest is None:
            return "no structure is known"
        now_s = self._unix_s()
        published = f"the last structure is {_age(now_s - self.newest.published_s)} old"
        if self.newest.ends_s > now_s:
            return published
        return f"{published} and ended {_age(now_s - self.newest.ends_s)} ago"

    @property
    def problem(self) -> str | None:
        """The reason why no structure is usable, with the remedy; None if one is."""
        if self.is_usable:
            return None
        if self._query_failure is None:
            return f"{self.describe()}; the client queries the directories for the present one: wait"
        missing = "one" if self.newest is None else "a newer one"
        return (
            f"{self.describe()}, and none of {len(self._link.directories)} directories returned {missing}: "
            f"{self._query_failure}; check that the router is connected to I2P, and that the link is current"
        )

    async def run(self) -> None:
        """Read the cache, then refresh the structure until canceled."""
        await self._read_cache()
        self._cache_read.set()
        delays = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S, self._random)
        withdrawals = Backoff(FAILED_FIRST_S, REFRESH_LONGEST_S, self._random)
        while True:
            if self._refresh_request.is_set():
                withdrawals.reset()
            self._refresh_request = trio.Event()
            try:
                await self.query()
            except (NoSessionError, NoLeafError):
                delay_s = delays.next_s()
            else:
                delays.reset()
                left_s = 0.0 if self.newest is None else self.newest.ends_s - self._unix_s()
                delay_s = refresh_delay_s(left_s, self._random)
                if self._table.has_failed(trio.current_time()):
                    delay_s = min(delay_s, withdrawals.next_s())
            self._is_pausing = True
            with trio.move_on_after(delay_s):
                await self._refresh_request.wait()
            self._is_pausing = False
            await trio.sleep_until(self._queried_at_s + LEAST_INTERVAL_S)

    def request_refresh(self) -> None:
        """Query the directories soon: a leaf is suspect or has failed."""
        self._refresh_request.set()

    async def wait_usable(self, timeout_s: float = STRUCTURE_WAIT_S) -> None:
        """Wait for a structure that has not ended; raise `NoLeafError` after a failed query or `timeout_s`."""
        failed = self._counters[ClientCounter.FETCHES_FAILED]
        with trio.move_on_after(timeout_s):
            while not self.is_usable and self._counters[ClientCounter.FETCHES_FAILED] == failed:
                if self._is_pausing and not self._one_query.locked():
                    self.request_refresh()
                await self._finished.wait()
        if self.problem is not None:
            raise NoLeafError(self.problem)

    async def query(self) -> None:
        """Query the directories; raise `NoSessionError`, or `NoLeafError` if none returned a usable structure."""
        # Wait for the cache: without the cached structure, an older one could be accepted.
        await self._cache_read.wait()
        async with self._one_query:
            session = await self._pool.session()
            self._queried_at_s = trio.current_time()
            self._counters[ClientCounter.FETCHES] += 1
            try:
                usable = await self.directories.query(session, self._judge)
            except SamUnreachableError as error:
                self._pool.failed(session, str(error))
                self._query_failed(str(error))
                usable = False
            else:
                if usable:
                    self._query_failure = None
                else:
                    self._query_failed(self.directories.failures())
            self._announce()
        if not usable:
            raise NoLeafError(self.problem or f"no directory returned a structure: {self._query_failure}")

    def _query_failed(self, reason: str) -> None:
        self._counters[ClientCounter.FETCHES_FAILED] += 1
        self._error.text = self._query_failure = reason

    def _announce(self) -> None:
        self._finished.set()
        self._finished = trio.Event()

    async def _judge(self, structure: bytes) -> Judgment:
        newest_s = None if self.newest is None else self.newest.published_s
        try:
            offered = self._verified(structure, int(self._unix_s()))
        except ExchangeError as error:
            raise self._refused(str(error)) from None
        if reason := refusal(offered, newest_s):
            raise self._refused(reason)
        if newest_s == offered.published_s:
            return Judgment.KNOWN
        self._counters[ClientCounter.STRUCTURES_ACCEPTED] += 1
        self._use(offered)
        # Shielded: if another directory's reply ends the query, a canceled write could leave an older structure in the
        # cache.
        with trio.CancelScope(shield=True):
            async with self._one_write:
                if self.newest is offered:
                    await self._write_cache(structure, offered.published_s)
        return Judgment.NEWER

    def _refused(self, reason: str) -> DirectoryError:
        self._counters[ClientCounter.STRUCTURES_REFUSED] += 1
        return DirectoryError(f"its structure is refused: {reason}")

    def _verified(self, structure: bytes, now_s: int) -> OfferedStructure:
        return _offered(
            verified_structure(self._link.address_hash, structure, now_s, clock_fudge_s=CLOCK_DIFFERENCE_MAX_S)
        )

    def _use(self, offered: OfferedStructure) -> None:
        self.newest = offered
        withdrawn = self._table.replace(offered.leaves)
        if withdrawn:
            self._on_withdrawn(withdrawn)

    async def _read_cache(self) -> None:
        try:
            content = await trio.to_thread.run_sync(_read_file, self.path)
        except OSError as error:
            self._cache_failed("read", error)
            return
        if content is None:
            return
        try:
            offered = self._cached(content)
        except (LeaseSetError, ExchangeError) as error:
            self._counters[ClientCounter.CACHE_FAILURES] += 1
            self._error.text = f"{self.path} is not used: {error}"
            return
        if refusal(offered, None) is None:
            self._use(offered)
            self._announce()

    def _cached(self, content: bytes) -> OfferedStructure:
        # Structures older than an expired one are still refused.
        return self._verified(content, min(int(self._unix_s()), decode(content).published_s))

    async def _write_cache(self, structure: bytes, published_s: int) -> None:
        with suppress(OSError, LeaseSetError, ExchangeError):
            present = await trio.to_thread.run_sync(_read_file, self.path)
            if present is not None and self._cached(present).published_s > published_s:
                return
        try:
            await trio.to_thread.run_sync(_write_file, self.path, structure)
        except OSError as error:
            self._cache_failed("written", error)

    def _cache_failed(self, what: str, error: OSError) -> None:
        self._counters[ClientCounter.CACHE_FAILURES] += 1
        self._error.text = f"{self.path} cannot be {what}: {error.strerror or error}"


def _offered(structure: MetaLeaseSet) -> OfferedStructure:
    leases = {
        lease.destination_hash: lease
        for lease in sorted(structure.leases, key=lambda each: each.cost, reverse=True)
        if lease.store_type in CONNECTABLE_KINDS
    }
    last_end_s = max((each.ends_s for each in leases.values()), default=0)
    signer_ends_s = last_end_s if structure.offline is None else structure.offline.expires_s
    ends_s = min(structure.published_s + structure.expires_after_s, last_end_s, signer_ends_s)
    return OfferedStructure(
        published_s=structure.published_s,
        ends_s=ends_s,
        entries=len(structure.leases),
        leaves=tuple(ListedLeaf(key, lease.cost, min(lease.ends_s, ends_s)) for key, lease in leases.items()),
        demo=structure.is_demo,
    )


def _age(seconds: float) -> str:
    return duration(max(0.0, seconds) * SECOND_MS)


def _read_file(path: Path) -> bytes | None:
    """Return the content of a regular file, one byte more than a structure at most; None if it does not exist."""
    try:
        # A pipe of that name must not block the client.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file: remove it")
    with os.fdopen(descriptor, "rb") as file:
        return file.read(STRUCTURE_LIMIT_BYTES + 1)


def _write_file(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, content, mode=0o600)
