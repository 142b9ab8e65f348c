"""Commands with a limited terminal, encoding or directory report the limit without a traceback."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bridge.cli.printing import drawing_refusal
from tests.end_to_end import forking
from tests.node.test_cli_commands import Node, served
from tests.processes import END_S

MODULE = [sys.executable, "-m", "bridge.cli.main"]
SCREEN_S = 60.0
NO_KEY = b"\0 is shown by no command"
"""Text that no command prints: `on_a_terminal` then waits for the end of the command, and does not press a key."""
UNSTYLED = re.compile(rb"\x1b\[[0-9;]*m")


def on_a_terminal(
    arguments: list[str], given: dict[str, str], until: bytes, *, starts_python: bool = False
) -> tuple[int, bytes]:
    """Run a command on a pseudo-terminal, and press `q` when it has shown `until`; return exit code and output.

    With `starts_python`, the interpreter reads the environment at its start.
    """
    terminal, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30", **given}
    process = (
        subprocess.Popen([*MODULE, *arguments], stdin=slave, stdout=slave, stderr=slave, env=environment)
        if starts_python
        else forking.start(arguments, slave, slave, given=slave, environment=environment)
    )
    os.close(slave)
    written, pressed = b"", False
    deadline = time.monotonic() + SCREEN_S
    try:
        while time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.05)[0]:
                try:
                    data = os.read(terminal, 65536)
                except OSError:
                    break
                written += data
            if until in written and not pressed:
                os.write(terminal, b"q")
                pressed = True
            if process.poll() is not None and not select.select([terminal], [], [], 0)[0]:
                break
        return process.wait(END_S), written
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait(END_S)
        os.close(terminal)


def test_top_is_drawn_with_limited_encoding(tmp_path: Path) -> None:
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
    with served(tmp_path / "control.sock", Node()):
        top = ["top", "--node", str(tmp_path)]
        code, written = on_a_terminal(top, environment, b"META LEASESET2", starts_python=True)
    assert code == 0, written.decode(errors="replace")
    assert b"Traceback" not in written
    assert b"leaf1abcdefg~.b32.i2p" in written
    assert b"> node-1" in written, "the mark of the chosen member"


def test_json_with_limited_encoding_is_exact() -> None:
    program = (
        "from bridge.cli.printing import guard_output, print_json_line, echo;"
        "from bridge.api.control import EventAnswer;"
        "guard_output(); print_json_line(EventAnswer('Zürich …', 1)); echo('Zürich …')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        check=True,
    )
    assert done.stdout.splitlines() == [rb'{"schema":1,"name":"Z\u00fcrich \u2026","nodes":1}', b"Z\xfcrich ~"]


def test_repeated_traceback_without_handler_is_limited() -> None:
    program = (
        "import logging; from bridge.cli.printing import guard_output; guard_output();"
        "[logging.getLogger('library').error('a fault', exc_info=ValueError()) for _ in range(5)]"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=END_S)
    assert done.stderr.count("a fault") == 1, done.stderr


def test_top_on_terminal_without_cursor_names_alternative(tmp_path: Path) -> None:
    with served(tmp_path / "control.sock", Node()):
        code, written = on_a_terminal(["top", "--node", str(tmp_path)], {"TERM": "dumb"}, b"garlicfarm status")
    assert code == 1
    assert b"cannot move its cursor" in written


def test_reason_of_ended_node_is_wrapped_at_terminal(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('name = "a"\ntransport = "i2p"\n[consensus]\nseeds = ["10.0.0.1:7669"]\n')
    code, written = on_a_terminal(["run", "--config", str(file)], {"COLUMNS": "80"}, b"never shown")
    assert code == 1
    lines = written.decode().splitlines()
    assert len(lines) > 2
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 80, lines


def test_terminal_of_unknown_kind_cannot_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    refusals = [drawing_refusal({"TERM": kind}) for kind in ("dumb", "UNKNOWN", "")] + [drawing_refusal({})]
    assert all("cannot move its cursor" in str(each) for each in refusals)
    assert drawing_refusal({"TERM": "xterm"}) is None


def test_network_address_is_not_taken_as_state_directory(tmp_path: Path) -> None:
    done = subprocess.run(
        [*MODULE, "status", "--node", "gopher://host:7650"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    assert "gopher://host:7650" in done.stderr
    assert "no node runs at" not in done.stderr


WITHOUT_RIGHTS = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]
"""Prefix that drops root's capabilities, so that file modes apply to root too."""


WRITING = (
    "up",
    "run --farm-key farm.key",
    "run --config node.toml",
    "keys new-farm --expect 3",
    "config import bundle new",
    "simulate gossip --members 4 --plot figure.svg",
    "status",
    "doctor",
)
EACH_IN_A_CHILD = """
import gc, json, os, sys, click
from bridge.cli.main import cli, main
for line in sys.argv[1:]:
    cli.get_command(click.Context(cli), line.split()[0])
gc.freeze()
for line in sys.argv[1:]:
    output, errors = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(errors, 2)
        sys.argv[1:] = line.split()
        main()
    os.close(errors)
    with open(output) as file:
        text = file.read()
    print(json.dumps([line, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text]), flush=True)
"""
"""Runs each command line in a forked child of a process that has loaded the modules of all commands."""


def test_read_only_directory_is_reported_without_traceback(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text('state_dir = "st"\n[gossip]\nbind = "127.0.0.1:17668"\n')
    tmp_path.chmod(0o555)
    prefix = WITHOUT_RIGHTS if os.geteuid() == 0 else []
    try:
        run = subprocess.run(
            [*prefix, sys.executable, "-c", EACH_IN_A_CHILD, *WRITING],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=60,
            check=True,
        )
    finally:
        tmp_path.chmod(0o755)
    ended = [json.loads(line) for line in run.stdout.splitlines() if line.startswith('["')]
    assert [command for command, _, _ in ended] == list(WRITING), run.stderr
    wrong = [
        each
        for each in ended
        if each[1] not in {1, 2} or "Traceback" in each[2] or "[Errno" in each[2] or not each[2].strip()
    ]
    assert wrong == []
