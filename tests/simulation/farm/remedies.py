"""The remedies of alarms, typed by the operator after healing: each printed command must work, and end its alarm.

    Remedies.apply    alarms of all members ──▶ commands in their texts and actions ──▶ the command line, or the machine

The real command line runs each command of `TYPED` (`command_line.py`). `NOT_TYPED` has the other commands, each with
its reason; a command in neither table is a violation. A command in its general form (`FILE`, or a mention without
values) is typed only for `key-retired`, because its text describes the missing steps. A printed `servers remove` is
typed if the server's machine is away, because its text concerns "a server that will not return". After `REMEDY_S` no
alarm may be active, except for alarms about incidents.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
import trio

from bridge.api.alarms import FORGED_VERDICTS, KEY_RETIRED, PEERS_REFUSED, REFUSED_BY_PEERS
from bridge.api.view import AlarmView
from bridge.node.security.key_files import load_farm_key, replace_farm_key
from tests.remedies.collect import Remedy, in_text
from tests.remedies.parsing import fault_of, found_command
from tests.simulation.farm.checks import Violation
from tests.simulation.farm.command_line import CommandLine
from tests.simulation.farm.world import World

REMEDY_S: Final = 120.0
LOOK_S: Final = 5.0
INCIDENTS: Final = frozenset({FORGED_VERDICTS.kind, PEERS_REFUSED.kind, REFUSED_BY_PEERS.kind})
"""Alarms about incidents: they end some minutes after the last incident."""
TYPED: Final = frozenset({"keys export", "log-time back", "node approve", "servers remove", "mv", "chmod"})
"""Paths of the typed commands, and other programs."""
_READS: Final = "it does not change anything; tests/remedies runs it at a running node"
_REAL_MACHINE: Final = "it examines or changes the real machine, not a simulated one"
_THEFT: Final = "its text requires a theft of a key or a node; no trial has one"
_MASTER: Final = "it makes keys or settings, which the world makes"
_PROGRAM: Final = "its text concerns a program of the reader; the clients of a trial use admitted keys"
NOT_TYPED: Final = {
    **dict.fromkeys(
        (
            "events", "farm", "help", "invite list", "keys list", "log", "log-time show", "members", "node clients",
            "node list", "servers", "status",
        ),
        _READS,
    ),
    **dict.fromkeys(("chown", "doctor", "pipeline", "router detect", "sudo", "systemctl"), _REAL_MACHINE),
    **dict.fromkeys(("keys replace", "node evict"), f"{_THEFT}; the actions NEW_KEYS and HOSTILE do the same"),
    **dict.fromkeys(
        ("init", "join", "run", "keys kafka-user", "keys master", "keys new-curve", "keys new-destination",
         "keys new-farm", "keys offline", "keys receive"),
        _MASTER,
    ),
    **dict.fromkeys(
        ("node admit-client", "node remove-client", "publish cost", "publish exclude", "publish force"), _PROGRAM
    ),
    "confirm-cluster": "its text requires two clusters of one farm; the end-to-end test of a copied key runs it",
    "invite new": "it needs a new machine; the action INVITE_AND_LEAVE does the same",
    "keys rotate": "its text requires an interrupted rotation; the action ROTATE repeats it until it ends",
    "leave": "its text requires a node that leaves a founding; no trial has one",
    "recover": "its text requires the loss of a majority or of a state; the action RECOVER does the same",
    "servers restore": "its text requires a removed server that must return; the action LEAVE does the same",
    "transfer": "its text requires an unknown leader of a new node; the clients of a trial do the same",
    "withdraw": "its text requires a founding that cannot end; no trial has one",
}  # fmt: skip
"""The other commands, and the reasons."""
_OF_FILES: Final[dict[str, Callable[[str, str], object]]] = {
    "mv": lambda old, new: Path(old).rename(new),
    "chmod": lambda mode, file: Path(file).chmod(int(mode, 8)),
}
_GENERAL: Final = re.compile(r"[A-Z][A-Z_]*")
"""A word that the reader replaces."""


def path_of(remedy: Remedy) -> str:
    """Return the path of a command, or the name of another program."""
    return found_command(remedy.words)[2] or remedy.command.split()[0]


def is_general(remedy: Remedy) -> bool:
    """Return True if the reader must add values to a command."""
    if not remedy.words:
        return remedy.is_open
    command, rest, _ = found_command(remedy.words)
    needs = any(isinstance(each, click.Argument) and each.required for each in command.params)
    return remedy.is_open or (needs and not rest) or any(_GENERAL.fullmatch(each) for each in rest)


class Remedies:
    """The remedies of one trial."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._line = CommandLine(world)
        self._voters: list[str] = []
        self.wrong: set[str] = set()
        """Remedies that are wrong or do not help."""
        self._seen: set[tuple[str, str]] = set()
        self.typed: Counter[str] = Counter()
        """Number of executed commands, by path."""
        self.skipped: Counter[str] = Counter()
        """Number of skipped commands, by path."""

    @property
    def figures(self) -> dict[str, int]:
        return {
            "remedies": self.typed.total(),
            **{f"typed {path}": number for path, number in sorted(self.typed.items())},
            **{f"not typed {path}": number for path, number in sorted(self.skipped.items())},
        }

    async def apply(self) -> list[Violation]:
        """Type the remedies until no alarm is active; return the remedies that are wrong or do not help."""
        until_s = self._world.time_s + REMEDY_S
        with self._line.installed():
            while True:
                alarms = await self._alarms()
                for name, alarm in alarms:
                    for remedy in in_text(f"{alarm.text}; {alarm.action}", f"{alarm.kind} at {name}"):
                        await self.follow(name, alarm, remedy)
                lasting = [(name, alarm) for name, alarm in alarms if alarm.kind not in INCIDENTS]
                if not lasting:
                    break
                if self._world.time_s >= until_s:
                    self.wrong.update(f"{alarm.kind} at {name} remains: {alarm.text:.200}" for name, alarm in lasting)
                    break
                await trio.sleep(LOOK_S)
        return [Violation("remedy", each) for each in sorted(self.wrong)]

    async def _alarms(self) -> list[tuple[str, AlarmView]]:
        found: list[tuple[str, AlarmView]] = []
        for name in self._world.members:
            async with self._world.control(name) as client:
                view = await client.view()
            found += [(name, each) for each in view.alarms]
            self._voters = [each.name for each in view.raft.voters if each.name in self._world.members] or self._voters
        return found

    async def follow(self, name: str, alarm: AlarmView, remedy: Remedy) -> None:
        """Type a command, or count it as skipped; each command is typed once."""
        if (fault := fault_of(remedy)) is not None:
            self.wrong.add(fault)
            return
        path, general = path_of(remedy), is_general(remedy)
        if path not in TYPED and path not in NOT_TYPED:
            self.wrong.add(f"{remedy.place}: `{remedy.command}` is in neither table of `remedies.py`")
            return
        once = (remedy.place if general or path in NOT_TYPED else "", remedy.command)
        if once in self._seen:
            return
        self._seen.add(once)
        if path in NOT_TYPED:
            self.skipped[path] += 1
        elif path == "servers remove" and not self._world.members.keys().isdisjoint(remedy.words):
            self.skipped[f"{path}, of a server that returns"] += 1
        elif not general:
            await self._type(name, remedy, path)
        elif path == "keys export" and alarm.kind == KEY_RETIRED.kind:
            await self._renew_key(name, remedy)
        else:
            self.skipped[f"{path}, general form"] += 1

    async def _type(self, name: str, remedy: Remedy, path: str) -> None:
        if path in _OF_FILES:
            _OF_FILES[path](*remedy.command.split()[1:])
            self._count(name, remedy, path)
        else:
            # A node that waits for its approval refers to a voter.
            place = self._voters[0] if path == "node approve" and self._voters else name
            await self._run(place, remedy, *remedy.words)

    async def _renew_key(self, name: str, remedy: Remedy) -> None:
        """Export the key at another member, copy it to the node with the alarm, and restart that node."""
        exported = self._world.directory / "keys" / f"{name}.{self.typed.total()}.exported.key"
        other = next(each for each, host in self._world.members.items() if each != name and host.run is not None)
        if await self._run(other, remedy, "keys", "export", str(exported)):
            settings = tomllib.loads(self._world.hosts[name].configuration_file.read_text(encoding="utf-8"))
            replace_farm_key(Path(settings["farm_key"]), load_farm_key(exported))
            await self._world.stop(name)
            if self._world.hosts[name].run is None:
                await self._world.start(name)

    async def _run(self, place: str, remedy: Remedy, *words: str) -> bool:
        """Run a command at a node; return True if it succeeds."""
        command, _, path = found_command(words)
        asks = any(each.name == "yes" for each in command.params)
        done = await self._line.at(place, *words, *(["--yes"] if asks else []))
        if done.exit_code != 0:
            self.wrong.add(f"{remedy.place}: `{remedy.command}` at {place}: {done.output.strip()}")
            return False
        self._count(place, remedy, path)
        return True

    def _count(self, place: str, remedy: Remedy, path: str) -> None:
        self.typed[path] += 1
        self._world.note(None, f"operator: typed at {place}: {remedy.command}")
