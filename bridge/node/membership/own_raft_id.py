"""The Raft id of a node that is not a founder: how it gets one, and drops a wrong one.

    gossip: "NodeId … is server 4" ──▶ does a member say so? ──▶ admissions.json ("told") ──▶ the Raft server may start
    the log: an admission of this identity ──────────────────▶ the same file ("servers"), which counts before "told"

The Raft id is in the log, which the node does not get before its server runs under that id. So the leader tells it in
its signed description. Every holder of the farm key can sign a description, so a word counts only if a server of the
farm says it. A founder's signature is enough: the founding names its identity. Any other member is called at its Raft
port first; there it has to prove its Raft id by the signed admissions that lead to a founder (`farm_peers`).

Such a proof cannot tell who was evicted since: an evicted member can still tell a newcomer a wrong id. That costs time
and nothing else, because under a wrong id no server of the farm calls this node or hears it. While its server has
stored nothing, the node looks for another proven word, and starts its server anew under that; each time it waits twice
as long. Once there is a log, the log alone counts, and a storage with anything in it serves no second id (`replica`).
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
"""As long as a call may take on a LAN: more often, a liar's words would keep the node busy calling."""
PAUSE_LIMIT_S = 600.0
TELLERS_MAX = 64
"""So many are called in a row of tries, chosen at random among those who tell an id."""
CALLS_MAX = 8

Word = tuple[FarmMember, int]


class Calls(Protocol):
    """What opens a connection to a server and has it prove who it is."""

    async def dial(self, address: PeerAddress, expected: int | None = None) -> Dialed:
        """Raises GarlicFarmError."""


class OwnRaftId:
    """The search of one node in one farm."""

    def __init__(
        self,
        farm: KnownFarm,
        member_directory: MemberDirectory,
        calls: Calls,
        is_out: Callable[[bytes], bool],
        alarms: Alarms,
    ) -> None:
        """`is_out` returns True for an identity known to be retired or evicted."""
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
        """This node's Raft id, as soon as a member tells it; on disk when this returns."""
        while (own_id := self._notes.own_id) is None:
            node_id = self._notes.node_id.hex()
            self._alarms.set(
                NOT_ADMITTED,
                f"this node ({node_id}) has found its farm, and is not admitted to it",
                f"at the node that leads: `garlicfarm node approve {node_id}`",
            )
            words = self._words(None)
            word = await self._proven(words)
            if word is not None:
                await self._notes.told_by_member(word)
            elif words:
                await trio.sleep(RETRY_S)
            else:
                await self._member_directory.news()
        self._alarms.clear(NOT_ADMITTED)
        return own_id

    async def until_corrected(
        self, server_id: int, applied_state: AppliedState, has_stored: Callable[[], bool] = lambda: False
    ) -> None:
        """Returns when this node has another Raft id than the one under which its server runs; that is on disk then.

        `has_stored` tells whether that server has an entry or a vote in its storage.
        """
        while self._notes.own_id == server_id:
            if has_stored() or self._has_log(applied_state):
                await applied_state.news()
                continue
            await trio.sleep(self._pause_s)
            word = await self._proven(self._words(server_id))
            # The log may have come while members were called.
            if word is not None and not has_stored() and not self._has_log(applied_state):
                self._pause_s = self._backoff.next_s()
                await self._notes.told_by_member(word)

    def _has_log(self, applied_state: AppliedState) -> bool:
        return applied_state.state.applied_index > 0 or self._notes.raft_id_of(self._notes.node_id) is not None

    def _words(self, besides: int | None) -> list[Word]:
        """Which member tells which id, other than `besides`; ids that belong to another identity are left out."""
        if not self._notes.may_be_server:
            return []
        told = self._member_directory.admissions_told(self._notes.node_id, self._founding.cluster_id)
        return [
            (teller, raft_id)
            for teller, raft_id in told
            if raft_id != besides and self._notes.node_id_of(raft_id) is None and not self._is_out(teller.node_id)
        ]

    async def _proven(self, words: list[Word]) -> int | None:
        """The id that a server of the farm tells; None if none of them is one that answers."""
        for teller, raft_id in words:
            if teller.node_id in self._founding.founders:
                return raft_id
        found: list[int] = []
        limit = trio.CapacityLimiter(CALLS_MAX)
        async with trio.open_nursery() as nursery:

            async def call(teller: FarmMember, raft_id: int) -> None:
                async with limit:
                    if await self._is_server(teller):
                        found.append(raft_id)
                        nursery.cancel_scope.cancel()

            for word in self._random.sample(words, min(len(words), TELLERS_MAX)):
                nursery.start_soon(call, *word)
        return found[0] if found else None

    async def _is_server(self, teller: FarmMember) -> bool:
        """Whether who told this proves at its Raft port to be a server of the farm."""
        address, raft_id = self._member_directory.address_of(teller.node_id), teller.metadata.raft_id
        if address is None or raft_id is None:
            return False
        try:
            dialed = await self._calls.dial(address, raft_id)
        except GarlicFarmError:
            return False
        await trio.aclose_forcefully(dialed.stream)
        return dialed.proven is not None and node_id_of(dialed.proven.public_key) == teller.node_id
