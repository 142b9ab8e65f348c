"""`garlicfarm farm`, `servers` and `publish`: views of the whole farm, and an operator's decisions."""

import json
from collections.abc import Callable

import pytest
import trio
from click.testing import Result

from bridge.api.control import Refused
from bridge.api.requests import CommandRequest
from tests.node.test_cli_commands import Node, garlicfarm, node

__all__ = ["garlicfarm", "node"]


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["publish", "force", "m.b32.i2p"], {"force": {"master": "m.b32.i2p"}}),
        (["publish", "exclude", "--yes", "l.b32.i2p"], {"exclusion": {"hash": "l.b32.i2p", "excluded": True}}),
        (["publish", "include", "l.b32.i2p"], {"exclusion": {"hash": "l.b32.i2p", "excluded": False}}),
        (["publish", "cost", "l.b32.i2p", "1.5"], {"cost": {"hash": "l.b32.i2p", "factor": 1.5}}),
        (["servers", "remove", "--yes", "node-3"], {"removal": {"server": "node-3", "removed": True}}),
        (["servers", "restore", "node-3"], {"removal": {"server": "node-3", "removed": False}}),
        (["log-time", "back", "--yes"], {"correction": {}}),
    ],
)
def test_operator_command_is_sent_to_node(
    node: Node, garlicfarm: Callable[..., Result], arguments: list[str], command: object
) -> None:
    result = garlicfarm(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"schema": 1, "kind": "cost", "index": 218, "text": "granted"}
    assert node.commands == [command]
    assert garlicfarm(*arguments).stdout.endswith("granted.\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["publish", "exclude", "l.b32.i2p"],
        ["servers", "remove", "node-3"],
        ["log-time", "back"],
        ["node", "approve", "node-3"],
        ["node", "evict", "node-3"],
    ],
)
def test_command_without_terminal_names_yes_option(
    node: Node, garlicfarm: Callable[..., Result], arguments: list[str]
) -> None:
    result = garlicfarm(*arguments, stdin="")
    assert result.exit_code == 1
    assert "nothing was done" in result.stderr
    assert "--yes" in result.stderr
    assert node.commands == []


@pytest.mark.parametrize("arguments", [["publish", "exclude", "l.b32.i2p"], ["servers", "remove", "node-3"]])
def test_destructive_command_needs_confirmation(
    node: Node, garlicfarm: Callable[..., Result], arguments: list[str]
) -> None:
    assert garlicfarm(*arguments, stdin="n\n").exit_code == 1
    assert node.commands == []
    assert garlicfarm(*arguments, stdin="y\n").exit_code == 0
    assert len(node.commands) == 1


@pytest.mark.parametrize("limit", [("--timeout", "0.1"), ("--wait", "0")])
def test_servers_remove_reports_pending_removal_with_reason(
    node: Node, garlicfarm: Callable[..., Result], limit: tuple[str, str]
) -> None:
    node.removed = (3,)
    for server in ("node-3", "3", f"{3:016x}"):
        result = garlicfarm("servers", "remove", "--yes", *limit, server)
        assert result.exit_code == 1
        assert "when the rules allow: node-5 has been dead for 3 min" in result.stderr


@pytest.mark.parametrize("option", ["--timeout", "--wait"])
def test_servers_remove_with_nan_seconds_is_refused(node: Node, garlicfarm: Callable[..., Result], option: str) -> None:
    result = garlicfarm("servers", "remove", "--yes", option, "nan", "node-3")
    assert (result.exit_code, node.commands) == (2, [])
    assert "'nan' is not a number" in result.stderr


def test_servers_remove_waits_for_node_unknown_to_gossip(node: Node, garlicfarm: Callable[..., Result]) -> None:
    node.removed = node.unknown_to_gossip = (3,)
    result = garlicfarm("servers", "remove", "--yes", "--timeout", "0.1", f"{3:016x}")
    assert result.exit_code == 1
    assert "is not removed yet" in result.stderr


def test_servers_remove_does_not_wait_for_other_removals(node: Node, garlicfarm: Callable[..., Result]) -> None:
    node.removed = (4, 9)
    for server in ("node-9", "9"):
        assert garlicfarm("servers", "remove", "--yes", "--timeout", "0.1", server).exit_code == 0


def test_servers_lists_voters_learners_with_removed_servers(node: Node, garlicfarm: Callable[..., Result]) -> None:
    node.removed = (4, 9)
    found = json.loads(garlicfarm("servers", "--json").stdout)
    assert [(each["raftId"], each["role"], each["leads"]) for each in found["servers"]] == [
        (1, "voter", True),
        *((each, "voter", False) for each in (2, 3, 4, 5)),
        (6, "learner", False),
    ]
    assert found["removed"] == [4, 9]
    text = garlicfarm("servers").stdout
    assert "removed by an operator: node-4, server 9" in text
    assert "node-1  leader" in text


@pytest.mark.usefixtures("node")
def test_farm_shows_shared_state(garlicfarm: Callable[..., Result]) -> None:
    found = json.loads(garlicfarm("farm", "--json").stdout)
    standings = found["publishing"][0]["standings"]
    assert standings[4]["inability"] == "it does not have a router"
    assert [each["standby"] for each in standings] == [True, False, False, False, False]
    assert found["weights"]["factors"][0]["ageMs"] == 61_000
    assert len(found["reports"]) == 5
    text = garlicfarm("farm").stdout
    for expected in (
        "CANDIDATE",
        "node-2 (2)",
        "publisher",
        "standby",
        "handed over",
        "yes: found by node-1 (9s ago)",
        "it does not have a router",
        "excluded",
        "cost x 1.21",
        "pipeline, 1",
        "UTC by node-2, content",
        "node-2: its score 880 is kept: the best of 4 is 890, of node-1; a change needs a lead of 100 points",
        "score 880: job lag 300 (0ms), uptime 130 of 200 (7m30s)",
        "LEASE SET",
        "service ok for 12m30s (failed once: Connection refused)",
    ):
        assert expected in text, expected


@pytest.mark.usefixtures("node")
def test_log_time_shows_offset_of_each_clock(garlicfarm: Callable[..., Result]) -> None:
    shown = garlicfarm("log-time", "show")
    assert shown.exit_code == 0, shown.output
    assert "log time is 10 s ahead of it" in shown.stdout
    lines = {line.split()[0]: line for line in shown.stdout.splitlines() if "(" in line}
    assert "+60.0 s" in lines["kyoto"]
    assert "unknown: its last report is too old" in lines["lima"]
    found = json.loads(garlicfarm("log-time", "show", "--json").stdout)
    assert (found["logTimeMs"], found["majorityMs"]) == (1_767_225_600_000, 1_767_225_590_000)
    assert found["clocks"][1] == {"raftId": 2, "name": "kyoto", "voter": True, "offsetMs": 60_000}


def test_refused_command_does_not_prompt(
    node: Node, garlicfarm: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the node would refuse the command, the reason is reported without a prompt."""

    async def refuse(_command: CommandRequest) -> None:
        await trio.lowlevel.checkpoint()
        raise Refused(409, "too-few-voters", "a farm of 3 keeps that many voters")

    monkeypatch.setattr(node, "_checked", refuse, raising=False)
    for arguments in (("publish", "exclude", "l.b32.i2p"), ("servers", "remove", "node-3"), ("log-time", "back")):
        result = garlicfarm(*arguments, stdin="y\n")
        assert result.exit_code == 1
        assert "[y/N]" not in result.output
        assert "a farm of 3 keeps that many voters" in result.stderr
    assert node.commands == []
