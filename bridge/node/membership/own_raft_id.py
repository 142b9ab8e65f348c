"""The Raft id of a node that is not a founder: the node receives one, and drops a wrong one.

    gossip: "NodeId … is server 4" ──▶ sent by a member? ──▶ admissions.json (announced id) ──▶ the server may start
    log: an admission of this identity ───────────────▶ the same file (servers), which takes precedence

The Raft id is in the log, which the node receives only after its server runs under that id. So the leader announces the
id in its signed description. Every holder of the farm key can sign a description, so an announcement (a notice) counts
only if a server of the farm sends it. A founder's signature is enough: the founding contains its identity. If another
member sends the notice, the node first connects to this member's Raft port. The member must prove its Raft id by a
chain of signed admissions from a founder (`farm_peers`).

Such a proof does not show later evictions: an evicted member can still announce a wrong id. A wrong id only delays this
node, because no server of the farm exchanges messages with a node under a wrong id. While its server has stored
nothing, the node looks for another proven notice and restarts its server under that id. The wait before each restart
doubles. Once there is a log, only the log counts, and a storage with an entry never serves a second id (`replica`).
"""

from collections.abc import Callable
from random import Random
from typing import Protocol

import trio

from bridge.api.alarms import NOT_ADMITTED
from bridge.core.formation.member import FarmMember
from bridge.node.events.alarms import Alarms
from bridge.node.membership.farm_peers import KnownFarm
from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.raft.applied_state import AppliedState
from consensus.net import Backoff
from consensus.protocols.garlic_farm import Dialed, GarlicFarmError, PeerAddress
from gossip.wire import node_id_of

RETRY_S = 5.0
"""Seconds between rounds, so that false notices do not keep the node busy. A call on a LAN takes at most this time."""
PAUSE_LIMIT_S = 600.0
ANNOUNCERS_MAX = 64
"""Limit for connections in one round, to random members among the announcing members."""
CALLS_MAX = 8

Notice = tuple[FarmMember, int]


class Calls(Protocol):
    """The opener of connections, which verifies the identity of servers."""

    async def dial(self, address: PeerAddress, expected: int | None = None) -> Dialed:
        """Connect; raise GarlicFarmError."""


class OwnRaftId:
    """The search of a node for its Raft id in one farm."""

    def __init__(
        self,
        farm: KnownFarm,
        member_directory: MemberDirectory,
        calls: Calls,
        is_out: Callable[[bytes], bool],
        alarms: Alarms,
    ) -> None:
        """Start the search; `is_out` returns True for an identity known to be retired or evicted."""
        self._notes = farm.admissions
        self._founding = farm.founding
        self._member_directory = member_directory
        self._calls = calls
        self._is_out = is_out
        self._alarms = alarms
        self._random = Random()
        self._backoff = Backoff(RETRY_S, PAUSE_LIMIT_S)
        self._pause_s = self._backoff.next_s()

    async def until_known(self) -> int:
        """Return this node's Raft id after a member announces it; it is on disk on return."""
        while (own_id := self._notes.own_id) is None:
            node_id = self._notes.node_id.hex()
            self._alarms.set(
                NOT_ADMITTED,
                f"this node ({node_id}) has found its farm, and is not admitted to it",
                f"at a voter of the farm: `garlicfarm node approve {node_id}`",
            )
            if not (notices := self._notices(None)):
                # No other task runs between the look and this wait, so an announcement cannot be missed.
                await self._member_directory.news()
            elif (notice := await self._proven(notices)) is not None:
                await self._notes.store_announced(notice)
            else:
                await trio.sleep(RETRY_S)
        self._alarms.clear(NOT_ADMITTED)
        return own_id

    async def until_corrected(
        self, server_id: int, applied_state: AppliedState, has_stored: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until the stored Raft id differs from the id of the running server.

        `has_stored` returns True if that server has an entry or a vote in its storage.
        """
        while self._notes.own_id == server_id:
            if has_stored() or self._has_log(applied_state):
                await self._notes.news()
                continue
            await trio.sleep(self._pause_s)
            notice = await self._proven(self._notices(server_id))
            # Check again, because the log may have arrived during the calls.
            if notice is not None and not has_stored() and not self._has_log(applied_state):
                self._pause_s = self._backoff.next_s()
                await self._notes.store_announced(notice)

    def _has_log(self, applied_state: AppliedState) -> bool:
        return applied_state.state.applied_index > 0 or self._notes.raft_id_of(self._notes.node_id) is not None

    def _notices(self, besides: int | None) -> list[Notice]:
        """Return members that announce an id. Omit `besides`, ids with an owner, and retired or evicted members."""
        if not self._notes.may_be_server:
            return []
        announced = self._member_directory.announced_admissions(self._notes.node_id, self._founding.cluster_id)
        return [
            (announcer, raft_id)
            for announcer, raft_id in announced
            if raft_id != besides and self._notes.node_id_of(raft_id) is None and not self._is_out(announcer.node_id)
        ]

    async def _proven(self, notices: list[Notice]) -> int | None:
        """Return the id announced by a founder, else by a proven server; None if neither announces one."""
        for announcer, raft_id in notices:
            if announcer.node_id in self._founding.founders:
                return raft_id
        found: list[int] = []
        limit = trio.CapacityLimiter(CALLS_MAX)
        async with trio.open_nursery() as nursery:

            async def call(announcer: FarmMember, raft_id: int) -> None:
                async with limit:
                    if await self._is_server(announcer):
                        found.append(raft_id)
                        nursery.cancel_scope.cancel()

            for notice in self._random.sample(notices, min(len(notices), ANNOUNCERS_MAX)):
                nursery.start_soon(call, *notice)
        return found[0] if found else None

    async def _is_server(self, announcer: FarmMember) -> bool:
        """Return True if the announcing member proves at its Raft port that it is a server of the farm."""
        address, raft_id = self._member_directory.address_of(announcer.node_id), announcer.metadata.raft_id
        if address is None or raft_id is None:
            return False
        try:
            dialed = await self._calls.dial(address, raft_id)
        except GarlicFarmError:
            return False
        await trio.aclose_forcefully(dialed.stream)
        return dialed.proven is not None and node_id_of(dialed.proven.public_key) == announcer.node_id
