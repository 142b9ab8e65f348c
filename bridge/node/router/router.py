"""The farm's interface to a router (the verbs of I2P proposal 150), and an implementation without a router.

    verb of the proposal            here
    getLocalRouterStatus            local_router_status
    getLocalLeafHash                local_leaf_hashes
    getLocalLeafStatus              local_leaf_status
    getRemoteMeasuredStatus         remote_measured_status
    publishMetaLS                   publish_meta_lease_set      (signed by the farm: a router never gets the key)
    stopPublishingMetaLS            stop_publishing_meta_lease_set
    (none)                          keep_ready

`FileRouter` keeps the structure on disk, for a demonstration or a test. It accepts and refuses structures like a
router: a structure must verify, belong to this destination, and follow the rules of Java routers.

A directory does not have tunnels. So outside a demonstration the node is *unattached* and its leaves are never healthy,
regardless of their probes. In a demonstration the directory replaces the router. Then a leaf is healthy if its local
service accepts a TCP connection, or if no service is configured.
"""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import trio
from msgspec import Struct
from msgspec.structs import replace

from bridge.api.printable import one_line
from bridge.core.log.figures import RouterStatus
from bridge.core.log.records import ConditionStatus, LeafFault, LeafStatus
from bridge.node.events.event_log import clock_ms
from bridge.node.router.host import HostSampler, LoopLag
from bridge.wire.i2p.meta_lease_set import (
    STRUCTURE_LIMIT_BYTES,
    STRUCTURE_SUFFIX,
    LeaseSetError,
    MetaLeaseSet,
    check_acceptable_to_java_router,
    decode,
    verify,
)
from bridge.wire.i2p.structures import Destination, address_of
from bridge.wire.log.reports import FAILURE_LIMIT
from consensus import sleep_to_tick
from consensus.net import connection_failure
from consensus.storage import replace_file, sync_directory

PROBE_TIMEOUT_S: Final = 2.0
LOOK_EVERY_S: Final = 10.0
NO_ROUTER: Final = "the configuration of its node does not name a router"


class RouterError(Exception):
    """The router failed or refused a structure. The message contains the action and the reason."""


class MeasuredStatus(Struct, frozen=True):
    """A router's measurement of another router's destination: the presence of its lease set, and the look-up time."""

    reachable: bool
    fetch_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ServedLeaf:
    """A destination that this node's router serves, and the address of its local service."""

    destination: Destination
    probe: tuple[str, int] | None = None
    master_hash: bytes | None = None
    """The master of the leaf; None: every master of this node."""


class Router(Protocol):
    """One router, by the proposal's verbs. Hashes are SHA-256 of destinations. Failures are `RouterError`."""

    async def local_router_status(self) -> RouterStatus:
        """Return the router's status; None for figures that this kind of router does not have."""

    async def local_leaf_hashes(self, master_hash: bytes) -> tuple[bytes, ...]:
        """Return the leaves on this router that serve a master destination."""

    async def local_leaf_status(self, leaf_hash: bytes) -> LeafStatus:
        """Return the status of one leaf."""

    async def remote_measured_status(self, master_or_leaf_hash: bytes) -> MeasuredStatus | None:
        """Return the router's measurement of another router's destination; None without a clear result."""

    def publishing_obstacle(self, master_hash: bytes) -> str | None:
        """Return the reason why this router cannot publish for a master with this node's key; None if it can."""

    async def publish_meta_lease_set(self, master_hash: bytes, structure: bytes) -> None:
        """Publish a signed structure, which replaces the previous one."""

    async def stop_publishing_meta_lease_set(self, master_hash: bytes) -> None:
        """Stop publishing this node's structure and end the session, if one is open."""

    async def keep_ready(self, master_hash: bytes, structure: bytes, *, urgent: bool) -> str | None:
        """Keep a session open, so that this node can publish immediately; `structure` is the structure in force.

        If `urgent`, also publish the structure: it is the first structure of a new publisher. Return the reason why the
        session is not ready; None if it is.
        """


async def probe_failure(host: str, port: int, timeout_s: float) -> str | None:
    """Return the reason why a service does not accept connections there; None if it does."""
    with trio.move_on_after(timeout_s):
        try:
            async with await trio.open_tcp_stream(host, port) as stream:
                # A connection to a closed ephemeral port can connect to itself (TCP simultaneous open); then there is
                # no service. If the service has reset the connection, `getpeername` raises OSError.
                is_own = stream.socket.getsockname() == stream.socket.getpeername()
                return os.strerror(errno.ECONNREFUSED) if is_own else None
        except (OSError, ValueError) as error:
            return connection_failure(error)
    return f"no reply within {timeout_s:g} s"


class _Condition(Struct):
    """The history of one condition of a leaf."""

    holds: bool | None = None
    """True or False in the last result; None if the state is unknown."""
    since_s: float = 0.0
    failures: int = 0
    last_error: str | None = None

    def note(self, error: str | None, now_s: float) -> None:
        """Record that the condition holds now, or the reason why it does not."""
        if self.holds is not (error is None):
            self.holds, self.since_s = error is None, now_s
            self.failures += not self.holds
        if error is not None:
            self.last_error = one_line(error, FAILURE_LIMIT)


class LocalLeaves:
    """The leaves of this node, the time when each became healthy, and the history of its conditions.

    The errors in a status do not contain addresses of this machine's network: all members read reports.
    """

    def __init__(self, leaves: Sequence[ServedLeaf]) -> None:
        self._leaves = {leaf.destination.hash: leaf for leaf in leaves}
        self._healthy_since_s: dict[bytes, float] = {}
        self._conditions: dict[tuple[bytes, LeafFault], _Condition] = {}

    @property
    def hashes(self) -> tuple[bytes, ...]:
        """The hashes of all leaves."""
        return tuple(self._leaves)

    def behind(self, master_hash: bytes) -> tuple[bytes, ...]:
        """Return the leaves of this master, and leaves without a master."""
        return tuple(each for each, leaf in self._leaves.items() if leaf.master_hash in {None, master_hash})

    async def probe(self, leaf_hash: bytes) -> dict[LeafFault, str | None]:
        """Probe the leaf's local service, and return the result for `status`; empty if none is configured."""
        leaf = self._leaves.get(leaf_hash)
        if leaf is None:
            raise RouterError(f"{address_of(leaf_hash)} is not a leaf of this node: see [[leaf]] in its configuration")
        if leaf.probe is None:
            return {}
        return {LeafFault.SERVICE: await probe_failure(*leaf.probe, PROBE_TIMEOUT_S)}

    def status(self, leaf_hash: bytes, found: Mapping[LeafFault, str | None]) -> LeafStatus:
        """Return the leaf's status, with the time that it has been healthy without a break.

        `found` has for each observed condition the reason of its failure, or None if the condition holds. While the
        router does not reply, the state of the lease set is unknown.
        """
        now_s = trio.current_time()
        faults = tuple(each for each in LeafFault if found.get(each) is not None)
        healthy = not faults
        conditions = {each: self._conditions.setdefault((leaf_hash, each), _Condition()) for each in LeafFault}
        for each, error in found.items():
            conditions[each].note(error, now_s)
        if LeafFault.ROUTER in faults:
            conditions[LeafFault.LEASE_SET].holds = None
        if not healthy:
            self._healthy_since_s.pop(leaf_hash, None)
        since_s = self._healthy_since_s.setdefault(leaf_hash, now_s) if healthy else now_s
        return LeafStatus(
            destination=self._leaves[leaf_hash].destination.base64,
            healthy=healthy,
            uptime_ms=round((now_s - since_s) * 1000) if healthy else None,
            faults=faults,
            conditions=tuple(
                ConditionStatus(
                    condition=each,
                    age_ms=None if past.holds is None else round((now_s - past.since_s) * 1000),
                    failures=past.failures,
                    last_error=past.last_error,
                )
                for each, past in conditions.items()
                if past.holds is not None or past.failures
            ),
        )


class FileRouter:
    """A directory instead of a router, with each published structure in `<directory>/<b32>.meta-ls2`."""

    def __init__(
        self,
        directory: Path,
        leaves: Sequence[ServedLeaf],
        host: HostSampler,
        loop_lag: LoopLag,
        *,
        demo: bool,
        clock: Callable[[], int] = clock_ms,
    ) -> None:
        self._directory = directory
        self._leaves = LocalLeaves(leaves)
        self._host = host
        self._loop_lag = loop_lag
        self._demo = demo
        self._clock_ms = clock
        self._published: dict[bytes, bytes] = {}
        self.files: frozenset[Path] = frozenset()
        """The structures in the directory when it was last read."""
        self._one_writer = trio.Lock()

    async def run(self) -> None:
        """Read the list of structures periodically, until canceled: other processes may remove structures."""
        while True:
            async with self._one_writer:
                await self._refresh_files()
            await sleep_to_tick(LOOK_EVERY_S)

    def path_of(self, master_hash: bytes) -> Path:
        """Return the file of a destination's structure."""
        return self._directory / f"{address_of(master_hash).removesuffix('.b32.i2p')}{STRUCTURE_SUFFIX}"

    async def local_router_status(self) -> RouterStatus:
        """Return figures of the host and of the node's own loop, without a query of a router."""
        await trio.lowlevel.checkpoint()
        return replace(self._host.sample(), attached=self._demo, job_lag_ms=self._loop_lag.mean_ms())

    async def local_leaf_hashes(self, master_hash: bytes) -> tuple[bytes, ...]:
        """Return the configured leaves of this master, and leaves without a master."""
        await trio.lowlevel.checkpoint()
        return self._leaves.behind(master_hash)

    async def local_leaf_status(self, leaf_hash: bytes) -> LeafStatus:
        """Probe the leaf's local service now."""
        found = await self._leaves.probe(leaf_hash)
        return self._leaves.status(leaf_hash, {LeafFault.ROUTER: None if self._demo else NO_ROUTER} | found)

    async def remote_measured_status(self, master_or_leaf_hash: bytes) -> MeasuredStatus | None:  # noqa: ARG002 - see doc
        """Return None: a file cannot measure anything."""
        await trio.lowlevel.checkpoint()
        return None

    def publishing_obstacle(self, master_hash: bytes) -> str | None:  # noqa: ARG002 - see doc
        """Return None: a file accepts every structure that a router accepts."""
        return None

    async def publish_meta_lease_set(self, master_hash: bytes, structure: bytes) -> None:
        """Write the structure to disk, atomically."""
        offered = checked_structure(master_hash, structure, self._clock_ms() // 1000)
        path = self.path_of(master_hash)
        async with self._one_writer:
            try:
                await trio.to_thread.run_sync(_replace_older, path, offered, structure)
            except OSError as error:
                raise RouterError(
                    f"the Meta LeaseSet2 cannot be written to {path}: {error.strerror or error}; free space there or"
                    " correct its permissions"
                ) from None
            self._published[master_hash] = structure
            self.files |= {path}

    async def keep_ready(self, master_hash: bytes, structure: bytes, *, urgent: bool) -> str | None:  # noqa: ARG002 - see doc
        """Remove the file of this node's own structure, and return None: a directory is always ready."""
        await self.stop_publishing_meta_lease_set(master_hash)
        return None

    async def stop_publishing_meta_lease_set(self, master_hash: bytes) -> None:
        """Remove the file if it still has this node's structure; keep another publisher's file."""
        async with self._one_writer:
            published = self._published.pop(master_hash, None)
            if published is None:
                return
            path = self.path_of(master_hash)
            try:
                await trio.to_thread.run_sync(_remove_if_same, path, published)
            except OSError as error:
                raise RouterError(f"{path} cannot be removed: {error.strerror or error}; remove it by hand") from None
            await self._refresh_files()

    async def _refresh_files(self) -> None:
        with suppress(OSError):  # The last list is used until the directory is read again.
            self.files = await trio.to_thread.run_sync(_structures_in, self._directory)


def checked_structure(
    master_hash: bytes, structure: bytes, now_s: int, previous: MetaLeaseSet | None = None
) -> MetaLeaseSet:
    """Return the structure if routers accept it for this destination at `now_s`; else raise `RouterError`.

    Most floodfills are Java routers, so the rules of Java routers apply regardless of this node's router. `previous` is
    the last accepted structure.
    """
    try:
        offered = decode(structure)
    except LeaseSetError as error:
        raise RouterError(f"this is not a Meta LeaseSet2, so it is not published: {error}") from None
    if offered.destination.hash != master_hash:
        raise RouterError(
            f"the structure is for {offered.destination.address}, not for {address_of(master_hash)}, so it is not"
            " published"
        )
    if offered.is_unpublished:
        raise RouterError(
            "the structure is marked unpublished, so it is not published: have it signed without the mark"
        )
    verification = verify(offered)
    if not verification.holds:
        raise RouterError(f"the structure's signature is invalid, so it is not published: {verification.reason}")
    reasons = check_acceptable_to_java_router(offered, now_s, None if previous == offered else previous)
    if reasons:
        raise RouterError(
            f"routers would refuse the structure, so it is not published: {'; '.join(reasons)}. It was signed for"
            f" second {offered.published_s}, and this machine's clock is at {now_s}: if they are far apart, compare"
            " this machine's clock with log time (`garlicfarm status`) and correct it (NTP). The farm plans the next"
            " structure automatically"
        )
    return offered


def _replace_older(path: Path, offered: MetaLeaseSet, structure: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = _read(path)
    if stored == structure:
        return
    try:
        published_s = decode(stored).published_s
    except LeaseSetError:
        published_s = -1  # the file is missing, or a router would have dropped its structure
    if offered.published_s <= published_s:
        raise RouterError(
            f"{path} holds a structure published at second {published_s}; a structure of second {offered.published_s}"
            " does not replace it"
        )
    replace_file(path, structure, mode=0o644)


def _structures_in(directory: Path) -> frozenset[Path]:
    return frozenset(directory.glob(f"*{STRUCTURE_SUFFIX}"))


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(STRUCTURE_LIMIT_BYTES + 1)
    except FileNotFoundError:
        return b""


def _remove_if_same(path: Path, published: bytes) -> None:
    if _read(path) == published:
        path.unlink(missing_ok=True)
        sync_directory(path.parent)
