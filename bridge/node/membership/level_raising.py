"""The farm's feature level: the leader raises it, and each node sets an alarm if it stays low.

    this node leads, every voter supports more ──▶ {"level": …}, one step at a time
    the level stays for `PATIENCE_S`           ──▶ alarm `feature-level`, on each node that supports more
    an order removes or evicts a server        ──▶ `bridge.node.control.orders.order_level`

Each voter announces its own level, so a hostile voter can announce an old level and withhold a new level from the farm.
A voter that has not been upgraded yet looks the same; only the duration distinguishes the two. An upgrade of all nodes
takes minutes to hours, and `garlicfarm doctor` lists the voters immediately. If all voters announce a higher level and
the farm's level still does not rise, the leader withholds it. So each node checks, not only the leader.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import trio

from bridge.api.alarms import FEATURE_LEVEL
from bridge.core.log.feature_level import SUPPORTED_LEVEL, holding_back, level_obstacle, next_level
from bridge.core.log.records import Level
from bridge.core.membership.admission import server_name
from bridge.core.state.farm_state import FarmState
from bridge.node.events.alarms import Alarms
from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.raft.entry_signer import EntrySigner
from bridge.node.raft.replica import Replica
from bridge.wire.log.entries import encode
from consensus import ServerBusyError, ServerStoppedError, integer_id, sleep_to_tick

LOOK_EVERY_S: Final = 1.0
PATIENCE_S: Final = 6 * 3600.0


@dataclass(slots=True, eq=False)
class LevelRaising:
    """The level raising of one node, while it is a server of a farm. `run` it once."""

    replica: Replica
    member_directory: MemberDirectory
    state: Callable[[], FarmState]
    signer: EntrySigner
    alarms: Alarms
    _level: int = field(default=0, init=False)
    _since_s: float = field(default=0.0, init=False)

    async def run(self) -> None:
        """Work until the farm has the highest level that this node supports: levels never fall."""
        while True:
            await sleep_to_tick(LOOK_EVERY_S)
            if self.state().level >= SUPPORTED_LEVEL:
                self.alarms.clear(FEATURE_LEVEL)
                return
            announced = self.announced()
            self._review(announced)
            level = next_level(self.state().level, announced.values()) if self.replica.leads else None
            if level is not None:
                await self._propose(level)

    def announced(self) -> Mapping[int, int | None]:
        """Return the level that each voter announces, by Raft id; None for a voter without a known announcement."""
        return announced_levels(self.replica, self.state(), self.member_directory)

    def obstacle(self, holding: Collection[int]) -> str:
        """Return why the farm stays at its level, with the levels that these voters announce."""
        return self._obstacle({each: level for each, level in self.announced().items() if each in holding})

    async def _propose(self, level: Level) -> None:
        with suppress(ServerStoppedError, ServerBusyError):
            answer = await self.replica.server.propose((self.signer.sign(encode(level)),))
            if answer.position is not None:
                await self.replica.server.wait_applied(answer.position.index)

    def _review(self, announced: Mapping[int, int | None]) -> None:
        state, now_s = self.state(), trio.current_time()
        if state.level != self._level:
            self._level, self._since_s = state.level, now_s
        if now_s - self._since_s < PATIENCE_S:
            self.alarms.clear(FEATURE_LEVEL)
            return
        blocking = holding_back(state.level, announced)
        if blocking:
            self.alarms.set(FEATURE_LEVEL, self._obstacle({each: announced[each] for each in blocking}))
            return
        leader = self.replica.server.role.leader
        if leader is not None:
            name = server_name(state.admitted, integer_id(leader))
            text = (
                f"the farm stays at feature level {state.level}: each voter supports more, and the leader, {name}, does"
            )
            self.alarms.set(FEATURE_LEVEL, f"{text} not raise it")

    def _obstacle(self, levels: Mapping[int, int | None]) -> str:
        state = self.state()
        named = {server_name(state.admitted, each): level for each, level in levels.items()}
        return level_obstacle(state.level, named)


def announced_levels(replica: Replica, state: FarmState, directory: MemberDirectory) -> dict[int, int | None]:
    """Return the level that each voter announces, by Raft id; None for a voter without a known announcement.

    Only the announcement of the admitted identity counts: any other member may claim the same id.
    """
    levels = {each.node_id: each.metadata.feature_level for each in directory.members()}
    group = replica.server.describe().raft
    own = integer_id(group.server_id)
    found: dict[int, int | None] = {}
    for voter in sorted(map(integer_id, group.configuration.voter_ids)):
        admitted = state.admitted.get(voter)
        found[voter] = SUPPORTED_LEVEL if voter == own else None if admitted is None else levels.get(admitted.node_id)
    return found
