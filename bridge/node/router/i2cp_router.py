"""A real router, Java or i2pd: publishes over I2CP and reports its state by I2PControl (docs/reference/routers.md).

    publish, be ready, stop  a session for each master destination        i2cp_publishing
    reachable, clock, hashes a connection without a session               i2cp_queries
    figures                  I2PControl, if it is configured              i2pcontrol

A leaf is healthy under three conditions. The router replies, the leaf's lease set can be looked up (so its tunnels
work), and its local service accepts its probe. Until a look-up has a clear result, only the other two conditions count.

Structures that the router would refuse are refused here, with a reason. In I2CP a router that refuses a structure ends
the session, and only replies "invalid" to the next one. A demonstration's structures never reach a real router, because
its keys are not secret.

The queries of the state do not raise errors if the router is unreachable. The node continues to report, with its leaves
as unhealthy, and an alarm about the router is active until the router replies.
"""

from collections.abc import Callable, Sequence
from typing import Final

import trio
from msgspec import Struct
from msgspec.structs import replace

from bridge.api.alarms import ROUTER_CLOCK, ROUTER_STATUS, ROUTER_UNREACHABLE
from bridge.core.log.figures import RouterStatus, known_of
from bridge.core.log.records import LeafFault, LeafStatus
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import clock_ms
from bridge.node.router.host import HostSampler, LoopLag
from bridge.node.router.i2cp_connection import RouterDate
from bridge.node.router.i2cp_publishing import I2cpAccess, MasterSession, session_obstacle
from bridge.node.router.i2cp_queries import FAILURES_FOR_NO, RouterQueries
from bridge.node.router.link import ControlAccess, RouterLost, Software
from bridge.node.router.router import (
    LocalLeaves,
    MeasuredStatus,
    RouterError,
    ServedLeaf,
    checked_structure,
)
from bridge.wire.i2p.destination_keys import SigningKey
from bridge.wire.i2p.i2pcontrol import RouterFacts
from bridge.wire.i2p.meta_lease_set import MetaLeaseSet, encode
from bridge.wire.i2p.structures import address_of

MASTERS_LIMIT: Final = 16
LEAVES_MEASURED_EVERY_S: Final = 60.0
CLOCK_LIMIT_MS: Final = 30_000
ROUTER_INFO_AGAIN_S: Final = 3600.0
LEASE_SET_NOT_FOUND: Final = f"{FAILURES_FOR_NO} look-ups in a row did not find it"
DEMO_KEY_OBSTACLE: Final = (
    "the structure or its key is a demonstration's and never reaches a real router: make a destination of your own with"
    " `garlicfarm keys new-destination` (`garlicfarm help signing-keys`)"
)


def key_obstacle(access: I2cpAccess, key: SigningKey) -> str | None:
    """Return the reason why this key never publishes through the router; None if it can. `doctor` shows the same."""
    return session_obstacle(access, key) or (DEMO_KEY_OBSTACLE if key.demo else None)


def other_software(access: I2cpAccess, date: RouterDate) -> str | None:
    """Return the reason to hand over no structure if the router is i2pd, contrary to the setting; else None.

    If the setting is `java` and the router is i2pd, i2pd drops the structure without a reply. The setting `i2pd` is not
    checked: a Java router disconnects with a reason, and a later i2pd may reply like a Java router.
    """
    if not date.is_from_i2pd or access.software is Software.I2PD:
        return None
    return (
        f'the router at {access.link} is i2pd, and the settings have software = "{access.software.value}":'
        f' set [router] software = "{Software.I2PD.value}", and restart this node'
    )


class I2cpRouterAccess(Struct, frozen=True):
    """The interfaces of the router."""

    i2cp: I2cpAccess
    control: ControlAccess | None = None


class I2cpRouter:
    """The router of this node; `run` it."""

    def __init__(
        self,
        access: I2cpRouterAccess,
        leaves: Sequence[ServedLeaf],
        host: HostSampler,
        loop_lag: LoopLag,
        alarms: Alarms,
        *,
        signing_key_of: Callable[[bytes], SigningKey | None],
    ) -> None:
        self._access = access
        self._leaves = LocalLeaves(leaves)
        self._host = host
        self._loop_lag = loop_lag
        self._alarms = alarms
        self._signing_key_of = signing_key_of
        self._queries = RouterQueries(access.i2cp)
        self._control = None
        if access.control is not None:
            # The HTTP client takes 10 ms and 1 MB, which most nodes do not need.
            from bridge.node.router.i2pcontrol import I2PControl  # noqa: PLC0415

            self._control = I2PControl(access.control)
        self._sessions: dict[bytes, MasterSession] = {}
        self._taken: dict[bytes, MetaLeaseSet] = {}
        """The last structure that the router accepted, for each master destination."""
        self._nursery: trio.Nursery | None = None
        self._running = trio.Event()
        self._trouble: str | None = "it has not been queried yet"
        """The reason, without addresses, why the router did not reply to the last query of its clock; None if it
        replied."""
        self._other_software: str | None = None
        self._reported_router_info: str | None = None
        self._report_again_at_s = 0.0

    async def run(self) -> None:
        """Keep the connections to the router until canceled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._running.set()
            nursery.start_soon(self._queries.run)
            nursery.start_soon(self._measure_leaves)
            await trio.sleep_forever()

    # -- status --------------------------------------------------------------------------------------------------------

    async def local_router_status(self) -> RouterStatus:
        """Return the figures of the router; figures of the host replace missing ones."""
        is_reachable = await self._check_clock()
        facts = await self._facts() if is_reachable else RouterFacts()
        # The host's uptime is this process's, not the router's.
        host = replace(self._host.sample(), uptime_ms=None, job_lag_ms=self._loop_lag.mean_ms())
        return replace(
            known_of(facts.report, host),
            attached=is_reachable,
            last_published_router_info=self._news_of_router_info(facts.report.last_published_router_info),
        )

    async def _check_clock(self) -> bool:
        try:
            date = await self._queries.date()
        except RouterLost as error:
            self._trouble = str(error).replace(str(self._access.i2cp.link), "its I2CP port")
            self._alarms.set(
                ROUTER_UNREACHABLE,
                f"the router does not answer, so its leaves count as unhealthy: {error}",
            )
            return False
        self._trouble = None
        self._alarms.clear(ROUTER_UNREACHABLE)
        self._other_software = other_software(self._access.i2cp, date)
        if abs(date.difference_ms) < CLOCK_LIMIT_MS:
            self._alarms.clear(ROUTER_CLOCK)
        else:
            self._alarms.set(
                ROUTER_CLOCK,
                f"the router's clock differs from this machine's by {date.difference_ms / 1000:+.0f} s",
            )
        return True

    async def _facts(self) -> RouterFacts:
        if self._control is None:
            return RouterFacts()
        try:
            facts = await self._control.facts()
        except RouterLost as error:
            self._alarms.set(ROUTER_STATUS, str(error))
            return RouterFacts()
        if facts.network_error is None:
            self._alarms.clear(ROUTER_STATUS)
        else:
            self._alarms.set(ROUTER_STATUS, f"the router reports: {facts.network_error}")
        return facts

    def _news_of_router_info(self, found: str | None) -> str | None:
        """Return the router's own RouterInfo if it has changed, and once an hour: a report may have been lost."""
        now_s = trio.current_time()
        if found is None or (found == self._reported_router_info and now_s < self._report_again_at_s):
            return None
        self._reported_router_info, self._report_again_at_s = found, now_s + ROUTER_INFO_AGAIN_S
        return found

    async def local_leaf_hashes(self, master_hash: bytes) -> tuple[bytes, ...]:
        """Return the configured leaves of this master, and leaves without a master."""
        await trio.lowlevel.checkpoint()
        return self._leaves.behind(master_hash)

    async def local_leaf_status(self, leaf_hash: bytes) -> LeafStatus:
        """Return the leaf's status: the router's last reply, the leaf's lease set, and its service now."""
        found = {LeafFault.ROUTER: self._trouble} | await self._leaves.probe(leaf_hash)
        measured = self._queries.known(leaf_hash)
        # A single failed look-up is not decisive, so the earlier state remains.
        if self._trouble is None and measured is not None and measured.reachable is not None:
            found[LeafFault.LEASE_SET] = None if measured.reachable else LEASE_SET_NOT_FOUND
        return self._leaves.status(leaf_hash, found)

    async def _measure_leaves(self) -> None:
        while True:
            for leaf_hash in self._leaves.hashes:
                await self._queries.measure(leaf_hash)
            await trio.sleep(LEAVES_MEASURED_EVERY_S)

    async def remote_measured_status(self, master_or_leaf_hash: bytes) -> MeasuredStatus | None:
        """Return the result of looking up another router's destination through this router."""
        found = await self._queries.measure(master_or_leaf_hash)
        is_i2pd = self._other_software is not None or self._access.i2cp.software is Software.I2PD
        if found is not None and not found.reachable and is_i2pd:
            return None  # i2pd does not search for Meta LeaseSet2, so this is not a failure
        return found

    # -- publishing ----------------------------------------------------------------------------------------------------

    def publishing_obstacle(self, master_hash: bytes) -> str | None:
        """Return an obstacle: i2pd contrary to the setting, a key file too old for i2pd, or a demonstration's key."""
        key = self._signing_key_of(master_hash)
        if key is None:
            return None  # A node without a key does not report an obstacle.
        return self._other_software or key_obstacle(self._access.i2cp, key)

    async def publish_meta_lease_set(self, master_hash: bytes, structure: bytes) -> None:
        """Hand a signed structure to the router, in a session of the master destination."""
        key, offered = self._checked(master_hash, structure)
        session = await self._session(master_hash, key)
        await session.publish(key, structure)
        self._taken[master_hash] = offered

    async def keep_ready(self, master_hash: bytes, structure: bytes, *, urgent: bool) -> str | None:
        """Keep the session open and hand over the structure in force, which may be another publisher's."""
        session, last = self._sessions.get(master_hash), self._taken.get(master_hash)
        if session is not None and last is not None and encode(last) == structure:
            return session.obstacle
        key, offered = self._checked(master_hash, structure)
        obstacle = key_obstacle(self._access.i2cp, key)
        if obstacle is not None:
            raise RouterError(obstacle)
        session = await self._session(master_hash, key)
        self._taken[master_hash] = offered
        return session.keep_ready(key, structure, urgent=urgent)

    async def _session(self, master_hash: bytes, key: SigningKey) -> MasterSession:
        session = self._sessions.get(master_hash)
        if session is None:
            if len(self._sessions) >= MASTERS_LIMIT:
                raise RouterError(f"this node has sessions for {MASTERS_LIMIT} master destinations, which is the limit")
            session = self._sessions[master_hash] = MasterSession(self._access.i2cp, key)
            await self._running.wait()
            if self._nursery is None:
                raise AssertionError("a running router has a nursery")
            self._nursery.start_soon(session.run)
        return session

    async def stop_publishing_meta_lease_set(self, master_hash: bytes) -> None:
        """End the session, if there is one."""
        session = self._sessions.pop(master_hash, None)
        if session is not None:
            await session.stop()

    def _checked(self, master_hash: bytes, structure: bytes) -> tuple[SigningKey, MetaLeaseSet]:
        offered = checked_structure(master_hash, structure, clock_ms() // 1000, self._taken.get(master_hash))
        key = self._signing_key_of(master_hash)
        if key is None:
            raise RouterError(
                f"this node does not have a signing key of {address_of(master_hash)}, so no session can be opened"
            )
        if offered.is_demo or key.demo:
            raise RouterError(DEMO_KEY_OBSTACLE)
        return key, offered
