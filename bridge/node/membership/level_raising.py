"""The farm's feature level: the leader raises it, and each node sets an alarm if it stays low.

    this node leads, every voter supports more ──▶ {"level": …}, one step at a time
    the level stays for `PATIENCE_S`           ──▶ alarm `feature-level`, on each node that supports more
    an order removes or evicts a server        ──▶ the leader raises the level without the announcement of this server

Each voter announces its own level, so a hostile voter can announce an old one and withhold a new level from the farm. A
voter that has not been upgraded yet looks the same; only the duration distinguishes the two. An upgrade of all nodes
takes minutes to hours, and `garlicfarm doctor` lists the voters immediately. If all voters announce a higher level and
the farm's level still does not rise, the leader withholds it. So each node checks, not only the leader.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
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
RAISE_PATIENCE_S: Final = 10.0
"""Longest time to commit and apply a level for an order."""


class LevelRaising:
    """The level raising of one node, while it is a server of a farm. `run` it once."""

    def __init__(
        self,
        replica: Replica,
        member_directory: MemberDirectory,
        state: Callable[[], FarmState],
        signer: EntrySigner,
        alarms: Alarms,
    ) -> None:
        self._replica = replica
        self._member_directory = member_directory
        self._state = state
        self._signer = signer
        self._alarms = alarms
        self._level = 0
        self._since_s = 0.0

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await sleep_to_tick(LOOK_EVERY_S)
            if self._state().level >= SUPPORTED_LEVEL:
                self._alarms.clear(FEATURE_LEVEL)
                continue
            announced = announced_levels(self._replica, self._state(), self._member_directory)
            self._review(announced)
            level = next_level(self._state().level, announced.values()) if self._replica.leads else None
            if level is not None:
                await self._propose(level)

    async def raise_without(self, server_id: int | None, needed: int) -> str | None:
        """Raise the level to `needed` at the leader; ignore the level that one server announces.

        The entry that removes or evicts this server may need a level that the server does not support, because it is
        lost or hostile. Return the obstacle, or None.
        """
        while (before := self._state().level) < needed:
            announced = announced_levels(self._replica, self._state(), self._member_directory)
            others = {each: level for each, level in announced.items() if each != server_id}
            level = next_level(before, others.values())
            if level is None:
                blocking = holding_back(before, others)
                obstacle = level_obstacle(before, self._named({each: others[each] for each in blocking}))
                return f"{obstacle}. Update these voters, and start them if they are down"
            with trio.move_on_after(RAISE_PATIENCE_S):
                await self._propose(level)
            if self._state().level == before:
                why = "leadership changed, or no majority answers"
                return f"feature level {level.number} was not committed: {why}; try again"
        return None

    async def _propose(self, level: Level) -> None:
        with suppress(ServerStoppedError, ServerBusyError):
            answer = await self._replica.server.propose((self._signer.sign(encode(level)),))
            if answer.position is not None:
                await self._replica.server.wait_applied(answer.position.index)

    def _review(self, announced: Mapping[int, int | None]) -> None:
        state, now_s = self._state(), trio.current_time()
        if state.level != self._level:
            self._level, self._since_s = state.level, now_s
        if now_s - self._since_s < PATIENCE_S:
            self._alarms.clear(FEATURE_LEVEL)
            return
        blocking = holding_back(state.level, announced)
        if blocking:
            named = self._named({each: announced[each] for each in blocking})
            self._alarms.set(FEATURE_LEVEL, level_obstacle(state.level, named))
            return
        leader = self._replica.server.role.leader
        if leader is not None:
            name = server_name(state.admitted, integer_id(leader))
            text = (
                f"the farm stays at feature level {state.level}: each voter supports more, and the leader, {name}, does"
            )
            self._alarms.set(FEATURE_LEVEL, f"{text} not raise it")

    def _named(self, levels: Mapping[int, int | None]) -> dict[str, int | None]:
        admitted = self._state().admitted
        return {server_name(admitted, each): level for each, level in levels.items()}


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
