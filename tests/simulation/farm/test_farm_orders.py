"""Each changing command at nodes that do not lead: a follower, and a learner, which cannot lead.

A command either succeeds, or its refusal names the voters.
"""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from bridge.api.control import CheckedAnswer
from bridge.api.control_routes import DEBUG, KEYS, ROUTES
from bridge.api.view import FarmView
from bridge.node.security.key_files import load_farm_key
from bridge.wire.keys.client_key import new_client_key
from tests.node.test_cli_spelling import commands
from tests.simulation.farm.command_line import CommandLine
from tests.simulation.farm.fault_walk import FORMED_S
from tests.simulation.farm.settings import Profile
from tests.simulation.farm.world import World, simulate

SEED: Final = 32
FOLLOWER, LEARNER = "follower", "node-4"
TO_A_NODE: Final = {
    path: command
    for path, command in commands()
    if path != "up" and {"node", "nodes"} & {each.name for each in command.params}
}
"""The commands that send requests to a node; `--nodes` of `up` is a number."""
READ_ONLY: Final = frozenset(
    {
        "status", "top", "farm", "events", "history", "monitor", "log", "log-time show", "members", "servers",
        "servers list", "node list", "node clients", "keys list", "invite list", "link",
    }
)  # fmt: skip
OF_ONE_NODE: Final = frozenset({"debug"})
"""Commands that send a POST and do not change anything."""
A_VOTER: Final = r"voter: node-1, node-2"


@dataclass(frozen=True, slots=True)
class Case:
    """A command line. `refused` is the refusal at both nodes, and `at_learner` the refusal at the learner alone."""

    line: str
    refused: str = ""
    at_learner: str = ""


CASES: Final = (
    Case("submit '{{}}'"),
    Case("event deploy"),
    Case("query ping"),
    Case("publish force {master}"),
    Case("publish exclude {leaf}"),
    Case("publish include {leaf}"),
    Case("publish cost {leaf} 2"),
    Case("log-time back", refused="it waits for them|no majority of the voters reported"),
    Case("withdraw", refused="the farm is created"),
    Case("confirm-cluster {cluster}", refused="belongs to cluster"),
    Case("node admit-client {key} --name program --scope weights"),
    Case("node remove-client program"),
    Case("transfer {voter}"),
    Case("backup {directory}/backup"),
    Case("invite new --json", at_learner=A_VOTER),
    Case("invite revoke {made}", at_learner="only the node that made"),
    Case("keys install"),
    Case("keys use {made}"),
    Case("keys remove {primary}"),
    Case("keys rotate"),
    Case("keys replace", at_learner=A_VOTER),
    Case("keys export {directory}/exported.key"),
    Case("keys export {directory}/unconfirmed.key --unconfirmed"),
    Case("servers remove node-4"),
    Case("servers restore node-4"),
)
APPROVE, EVICT, LEAVE = (
    Case("node approve node-4", at_learner=A_VOTER),
    Case("node evict node-4", at_learner=A_VOTER),
    Case("leave"),
)
ROUNDS: Final = (
    (FOLLOWER, (APPROVE, *CASES)),
    (LEARNER, (*CASES, APPROVE, EVICT, LEAVE)),
    (FOLLOWER, (EVICT, LEAVE)),
)
JOINING: Final = {"node approve node-4", "servers restore node-4"}
"""Commands that add the learner to the group."""


def path_of(case: Case) -> str:
    return max((each for each in TO_A_NODE if f"{case.line} ".startswith(f"{each} ")), key=len)


def voter_that_follows(view: FarmView) -> str:
    return str(next(each.name for each in view.raft.voters if each.raft_id != view.raft.leader_id))


async def view_of_voter(world: World, *, with_learner: bool = False) -> FarmView:
    """Return the view of a voter when it has a leader and, `with_learner`, when the group has a learner."""
    with trio.fail_after(90):
        while True:
            async with world.control("node-1") as client:
                view = await client.view()
            if view.raft.leader_id is not None and (view.raft.learners or not with_learner):
                return view
            await trio.sleep(0.5)


def words_of(case: Case, view: FarmView, made: str, primary: str, directory: Path) -> list[str]:
    publishing = view.publishing[0]
    line = case.line.format(
        master=publishing.master,
        leaf=view.reports[0].leaves[0].destination,
        cluster=view.farm.cluster_id,
        voter=voter_that_follows(view),
        made=made,
        primary=primary,
        key=new_client_key("program").public_key,
        directory=directory,
    )
    asks = any(each.name == "yes" for each in TO_A_NODE[path_of(case)].params)
    return [*shlex.split(line), *(["--yes"] if asks else [])]


async def run_cases(directory: Path) -> set[str]:
    """Run each case at a follower and at the learner; return the paths of all POST requests."""
    async with World.open(SEED, hosts=2, profile=Profile(admit="ask", voters_max=1)) as world:
        await world.start_all()
        await trio.sleep(FORMED_S)
        await world.join(4)
        await trio.sleep(3)
        line = CommandLine(world)
        with line.installed():
            for number, (place, cases) in enumerate(ROUNDS):
                (files := directory / str(number)).mkdir()
                await run_at(line, place, cases, files)
                if place == FOLLOWER and EVICT not in cases:
                    await check_own_writes(line, files)
                    await check_messages(line)
        return line.posted


async def run_at(line: CommandLine, place: str, cases: tuple[Case, ...], directory: Path) -> None:
    made = primary = "unknown"
    for case in cases:
        view = await view_of_voter(line.world)
        if case.line.startswith(("keys use", "keys remove")):
            await trio.sleep(1)  # All members confirm a change of the keys within this time.
        if case.line == "keys install":
            async with line.world.control("node-1") as client:
                primary = (await client.call(KEYS)).primary
        name = place if place == LEARNER else voter_that_follows(view)
        words = words_of(case, view, made, primary, directory)
        done = await line.at(name, *words)
        if found := re.search(r"\b([0-9a-f]{8})\b", done.output):
            made = found[1]
        refusal = case.refused or (case.at_learner if place == LEARNER else "")
        assert (done.exit_code == 0) == (not refusal), f"{words} at {name}: {done.output}"
        assert re.search(refusal, done.output), f"{words} at {name}: {done.output}"
        if not refusal and case.line in JOINING:
            await view_of_voter(line.world, with_learner=True)


async def check_messages(line: CommandLine) -> None:
    """Require an event in the trace of each node, and the reply of each node to a query."""
    assert (await line.at(LEARNER, "event", "deploy", "version 2")).exit_code == 0
    await trio.sleep(3)
    for name in line.world.hosts:
        listed = await line.at(name, "events", "--kind", "user-event")
        assert f"deploy from {LEARNER}: version 2" in listed.output, f"{name}: {listed.output}"
    result = json.loads((await line.at("node-1", "query", "ping", "--json")).output)
    assert [each["payload"] for each in result["answers"]] == sorted(line.world.hosts)
    assert result["silent"] == []


async def check_own_writes(line: CommandLine, directory: Path) -> None:
    """Read at each node immediately after a change was acknowledged at another node."""
    view = await view_of_voter(line.world, with_learner=True)
    leaf = view.reports[0].leaves[0].destination
    for reader in line.world.hosts:
        writer = "node-1" if reader != "node-1" else "node-2"
        assert (await line.at(writer, "publish", "exclude", leaf, "--yes")).exit_code == 0
        shown = json.loads((await line.at(reader, "farm", "--json")).output)
        assert [each["destination"] for each in shown["weights"]["excluded"]] == [leaf], f"{reader} after {writer}"
        done = await line.at(reader, "publish", "include", leaf)
        assert done.exit_code == 0, f"{reader} after {writer}: {done.output}"
        done = await line.at(writer, "publish", "include", leaf)
        assert "is not excluded" in done.output, f"{writer} after {reader}: {done.output}"
    voters = [name for name in line.world.hosts if name != LEARNER]
    for number, writer in enumerate(voters):
        assert (await line.at(writer, "keys", "replace", "--yes")).exit_code == 0
        written = {name: directory / f"{name}-{number}.key" for name in line.world.hosts}
        for name, file in written.items():
            done = await line.at(name, "keys", "export", str(file))
            assert done.exit_code == 0, f"{name}: {done.output}"
        assert {load_farm_key(file).era for file in written.values()} == {number + 2}, f"replaced at {writer}"


def test_changing_command_works_at_any_node(tmp_path: Path) -> None:
    posted = simulate(SEED, lambda: run_cases(tmp_path))
    changing = (each for each in ROUTES.values() if each.method == "POST" and each.answer is not CheckedAnswer)
    assert posted == {each.path for each in changing} - {DEBUG.path}


def test_commands_to_a_node_all_have_cases() -> None:
    assert TO_A_NODE.keys() == READ_ONLY | OF_ONE_NODE | set(map(path_of, (*CASES, APPROVE, EVICT, LEAVE)))
