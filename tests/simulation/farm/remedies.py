"""The remedies of alarms, typed by the operator after healing: each printed command must work, and end its alarm.

    Remedies.apply    alarms of all members ──▶ commands in their actions ──▶ orders to the node with the alarm

A command is parsed by the real command line (`tests.remedies.parsing`), so a wrong option fails here, too. Its order is
sent by the product's control client, as the command does. The command line itself cannot run here: it starts its own
trio run. Reading commands are not sent. After `REMEDY_S` no alarm may be active.
"""

from typing import Final

import trio

from bridge.api.alarms import FORGED_VERDICTS, PEERS_REFUSED, REFUSED_BY_PEERS
from bridge.api.control_routes import NODES_APPROVE
from bridge.api.requests import CommandRequest, NodeRequest, RemovalOrder
from bridge.api.view import AlarmView
from bridge.node.control.client import ControlError
from tests.remedies.collect import Remedy, in_text
from tests.remedies.parsing import fault_of, found_command
from tests.simulation.farm.checks import Violation
from tests.simulation.farm.operators import Operator
from tests.simulation.farm.world import World

REMEDY_S: Final = 120.0
LOOK_S: Final = 5.0
INCIDENTS: Final = frozenset({FORGED_VERDICTS.kind, PEERS_REFUSED.kind, REFUSED_BY_PEERS.kind})
"""Alarms about incidents: they end some minutes after the last one."""


class Remedies:
    """The remedies of one trial."""

    def __init__(self, world: World, operator: Operator) -> None:
        self._world = world
        self._operator = operator
        self._wrong: set[str] = set()
        self.typed = 0
        """Number of executed commands."""

    async def apply(self) -> list[Violation]:
        """Type the remedies until no alarm is active; return the remedies that are wrong or do not help."""
        until_s = self._world.time_s + REMEDY_S
        while alarms := await self._alarms():
            if self._world.time_s >= until_s:
                self._wrong.update(f"{alarm.kind} at {name} remains: {alarm.text:.200}" for name, alarm in alarms)
                break
            for name, alarm in alarms:
                for remedy in in_text(f"{alarm.text}; {alarm.action}", f"{alarm.kind} at {name}"):
                    await self._type(name, remedy)
            await trio.sleep(LOOK_S)
        return [Violation("remedy", each) for each in sorted(self._wrong)]

    async def _alarms(self) -> list[tuple[str, AlarmView]]:
        found: list[tuple[str, AlarmView]] = []
        for name in self._world.members:
            async with self._world.control(name) as client:
                found += [(name, each) for each in (await client.view()).alarms if each.kind not in INCIDENTS]
        return found

    async def _type(self, name: str, remedy: Remedy) -> None:
        fault = fault_of(remedy)
        if fault is not None:
            self._wrong.add(fault)
            return
        _, rest, path = found_command(remedy.words)
        argument = next((each for each in rest if not each.startswith("-") and not each.isupper()), None)
        try:
            async with self._world.control(name) as client:
                match path:
                    case "keys export":
                        await self._operator.export()
                    case "node approve" if argument is not None:
                        await client.call(NODES_APPROVE, NodeRequest(argument))
                    case "servers remove" if argument is not None:
                        await client.command(CommandRequest(removal=RemovalOrder(argument, removed=True)))
                    case _:
                        return
        except ControlError as error:
            self._wrong.add(f"{remedy.place}: `{remedy.command}`: {error}")
        else:
            self.typed += 1
            self._world.note(None, f"operator: typed at {name}: {remedy.command}")
