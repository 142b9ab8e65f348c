"""Shell completion: commands and topics without loading them, and the members and servers that a node lists."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner
from msgspec.structs import replace

from bridge.api.control import InvitationsAnswer, InvitationView
from bridge.api.control_routes import INVITATIONS
from bridge.cli.help.completion import ANSWER_TIMEOUT_S, SHELLS, VARIABLE, completion_script
from bridge.cli.main import cli
from pipeline.cli.commands import pipeline
from tests.node.test_cli_commands import served
from tests.node.test_control import FakeNode
from tests.operator_views import farm_view
from tests.structure.sources import ROOT

MEMBERS = [each.name for each in farm_view().members]
RAFT = farm_view().raft
SERVERS = [each.name or str(each.raft_id) for each in (*RAFT.voters, *RAFT.learners)]


def offered(*line: str) -> list[str]:
    """Return the completions that bash receives for the last word."""
    environment = {VARIABLE: "bash_complete", "COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(line) - 1)}
    done = CliRunner().invoke(cli, [], prog_name="garlicfarm", env=environment)
    return [line.partition(",")[2] for line in done.output.splitlines() if line]


def test_commands_are_offered_in_order() -> None:
    assert offered("garlicfarm", "") == list(cli.lazy_commands)
    assert offered("garlicfarm", "se") == ["servers"]
    assert offered("garlicfarm", "--v") == ["--version"]


def test_pipeline_commands_and_options_are_offered() -> None:
    assert offered("garlicfarm", "pipeline", "") == sorted(pipeline.commands)
    assert offered("garlicfarm", "pipeline", "qu") == ["query"]
    assert offered("garlicfarm", "pipeline", "run", "--engine", "") == ["local", "spark"]
    assert "--minutes" in offered("garlicfarm", "pipeline", "query", "--")


@pytest.mark.parametrize(
    ("words", "word"),
    [("", "plain,status"), ("pipeline qu", "plain,query"), ("pipeline query l", "plain,leaders")],
)
def test_command_completion_does_not_load_commands(words: str, word: str) -> None:
    line = f"garlicfarm {words}"
    number = str(line.count(" "))
    environment = {VARIABLE: "bash_complete", "COMP_WORDS": line, "COMP_CWORD": number, "PYTHONPATH": str(ROOT)}
    code = (
        "import sys\nfrom bridge.cli.main import cli\n"
        "try: cli(prog_name='garlicfarm', standalone_mode=False)\nexcept SystemExit: pass\n"
        "large = {'trio', 'rich', 'cryptography', 'pyspark', 'pyarrow', 'bridge.cli.status'}\n"
        "print(sorted(each for each in sys.modules if each in large))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    *found, loaded = done.stdout.splitlines()
    assert (word in found, loaded) == (True, "[]"), found


def test_status_or_members_does_not_import_rich() -> None:
    code = (
        "import sys\nfrom bridge.cli.main import cli\n"
        "for name in ('status', 'members'):\n"
        "    try: cli([name, '--node', '/nowhere/control.sock'], prog_name='garlicfarm')\n    except SystemExit: pass\n"
        "print('bridge.cli.status' in sys.modules, 'rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True False"


def test_topics_are_offered_for_help() -> None:
    assert offered("garlicfarm", "help", "sett") == ["settings"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (("node", "evict"), MEMBERS),
        (("node", "approve"), MEMBERS),
        (("servers", "remove"), SERVERS),
        (("transfer",), SERVERS),
        (("publish", "exclude"), sorted(each.destination for each in farm_view().publishing[0].entries)),
        (("publish", "force"), [each.master for each in farm_view().publishing]),
    ],
)
def test_names_are_requested_from_node(
    line: tuple[str, ...], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "control.sock"
    monkeypatch.setenv("GARLICFARM_NODE", str(path))
    with served(path, FakeNode()):
        assert sorted(offered("garlicfarm", *line, "")) == expected
        assert offered("garlicfarm", *line, expected[-1]) == [expected[-1]]


def test_names_are_requested_from_node_on_command_line(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with served(path, FakeNode()):
        assert "node-2" in offered("garlicfarm", "servers", "remove", "--node", str(path), "")


def test_invitations_without_revoked_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = InvitationView("1a2b3c4d", "open", 1, 0, 1, ())
    answer = InvitationsAnswer((made, replace(made, id="5e6f7a8b", state="revoked")))

    async def listing(_: object) -> InvitationsAnswer:
        await trio.lowlevel.checkpoint()
        return answer

    path = tmp_path / "control.sock"
    monkeypatch.setenv("GARLICFARM_NODE", str(path))
    with served(path, {INVITATIONS: listing}):
        assert offered("garlicfarm", "invite", "revoke", "") == ["1a2b3c4d"]
        assert offered("garlicfarm", "invite", "revoke", "5") == []


def test_missing_node_offers_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GARLICFARM_NODE", str(tmp_path / "control.sock"))
    assert offered("garlicfarm", "node", "evict", "") == []


def test_unresponsive_node_offers_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GARLICFARM_NODE", str(tmp_path / "control.sock"))
    with socket.socket(socket.AF_UNIX) as unresponsive:
        unresponsive.bind(str(tmp_path / "control.sock"))
        unresponsive.listen()
        assert offered("garlicfarm", "node", "evict", "") == []
    assert ANSWER_TIMEOUT_S <= 1, "a key press waits this long"


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_script_is_valid_for_shell(shell: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    assert VARIABLE in done.output
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine to read the script")
    script = tmp_path / "script"
    script.write_text(done.output)
    subprocess.run([shell, "-n", script], check=True)


def test_fish_shows_complete_description_of_topic(tmp_path: Path) -> None:
    """Earlier, the text after the first comma was cut off."""
    if shutil.which("fish") is None:
        pytest.skip("no fish here (Debian: apt-get install fish)")
    command = tmp_path / "garlicfarm"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m bridge.cli.main "$@"\n')
    command.chmod(0o755)
    (tmp_path / "script.fish").write_text(completion_script(cli, "fish"))
    command_line = ["fish", "--no-config", "-c", f'source {tmp_path}/script.fish; complete -C "garlicfarm help serv"']
    places = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    done = subprocess.run(command_line, env=places, capture_output=True, text=True, check=True)
    assert done.stdout == "servers\tadd, replace and remove nodes\n"
