"""The overview of the commands, similar names, and one spelling of common options."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bridge.cli import main as main_module
from bridge.cli import options
from bridge.cli.help.lazy_group import LazyCommand
from bridge.cli.main import COMMANDS, cli
from pipeline.cli.commands import pipeline
from tests.effort import each_case

WATCHED = {
    "status", "farm", "history", "members", "servers", "servers list", "log-time show", "node list", "node clients",
    "keys list", "zmq-raft status", "kraft describe", "events", "log", "kraft log",
}  # fmt: skip
"""Commands that show a view or a stream."""
FILES = {"keys new-farm", "keys offline", "debug"}
"""Commands with an option for the name of their output file."""
DASHED = f"-Fh-~w{'A' * 510}=="
"""A destination whose base64 begins with a dash, followed by letters of short options."""


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its path. Include a group if it runs without a subcommand."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield " ".join((*path, name)), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def groups(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    context = click.Context(group)
    names = group.list_commands(context)
    yield path, names
    for name in names:
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from groups(command, (*path, name))


def test_help_of_each_command_is_whole_on_80_columns() -> None:
    named = [path.split() for path, _ in commands()] + [list(path) for path, _ in groups()]
    named += [["pipeline"], *(["pipeline", path] for path, _ in commands(pipeline))]
    for each in named:
        lines = CliRunner().invoke(cli, [*each, "--help"], env={"COLUMNS": "80"}).output.splitlines()
        assert len(lines) > 3, each
        wrong = [line for line in lines if len(line) > 80 or (line.endswith(("...", "-")) and "Usage" not in line)]
        assert wrong == [], each


def test_overview_shows_each_command_in_one_section() -> None:
    shown = CliRunner().invoke(cli, ["--help"]).output
    headings = re.findall(r"^(\w.*):$", shown, re.MULTILINE)
    assert headings == ["Options", *COMMANDS]
    names = re.findall(r"^  ([a-z][a-z-]*)  ", shown, re.MULTILINE)
    assert len(names) == len(set(names))
    assert set(names) == set(cli.lazy_commands) == {"pipeline"}.union(*COMMANDS.values())


def test_help_has_section_of_each_command() -> None:
    assert all(COMMANDS.values())
    assert all(isinstance(each, LazyCommand) for section in COMMANDS.values() for each in section.values())


def swapped(name: str) -> str:
    """Return the name with its middle letters swapped."""
    at = len(name) // 2
    return name[: at - 1] + name[at] + name[at - 1] + name[at + 1 :]


@each_case(("path", "names"), [*groups(), (("pipeline",), sorted(pipeline.commands))])
def test_misspelled_command_names_similar_at_every_level(path: tuple[str, ...], names: list[str]) -> None:
    for name in names:
        typed = swapped(name)
        if typed in names or len(name) < 4:
            continue
        done = CliRunner().invoke(cli, [*path, typed])
        assert (done.exit_code, name in done.output.rpartition("Did you mean")[2]) == (2, True), (typed, done.output)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("evict", "'node evict'"),
        ("rotate", "'keys rotate'"),
        ("exclude", "'publish exclude'"),
        ("list", "'invite list' or 'servers list' or 'node list' or 'keys list'"),
    ],
)
def test_command_of_a_group_is_named_with_its_group(typed: str, meant: str) -> None:
    done = CliRunner().invoke(cli, [typed])
    assert (done.exit_code, f"No such command {typed!r}. Did you mean {meant}?" in done.output) == (2, True)


def test_unknown_command_imports_no_command() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from bridge.cli.main import cli; "
        "print(CliRunner().invoke(cli, ['rotate']).output, 'bridge.cli.keys.farm_keys' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'keys rotate'" in done.stdout
    assert done.stdout.split()[-1] == "False"


def test_common_options_have_one_spelling_and_type() -> None:
    """Each of three options has one kind of value; the lists above have the commands with `--watch` and `--output`."""
    by_name: dict[str, set[str]] = {}
    for path, command in commands():
        for each in command.params:
            if not isinstance(each, click.Option) or each.hidden or path.startswith("pipeline"):
                continue
            record = each.get_help_record(click.Context(command))
            assert record is not None
            assert not re.search(r"--(follow|out|interval|format|wait)\b", record[0]), (path, record)
            match each.opts[0]:
                case "--timeout":
                    assert (each.metavar, type(each.type)) == ("SECONDS", options.NumberRange), path
                case "--watch":
                    assert each.is_flag, path
                case "--output":
                    assert isinstance(each.type, click.Path), path
                case _:
                    pass
            by_name.setdefault(each.opts[0], set()).add(path)
    assert by_name["--watch"] == WATCHED
    assert by_name["--output"] == FILES


def test_types_of_values_are_nouns() -> None:
    """Click reports a wrong value as "not a valid" and this name."""
    names = {(path, each.type.name) for path, command in commands() for each in command.params}
    assert {(path, name) for path, name in names if "range" in name} == set()


def test_nodes_to_act_on_are_arguments() -> None:
    """An option with such a value would be a second spelling of `node evict NODE` and `servers remove SERVER`."""
    named = {
        (path, each.opts[0])
        for path, command in commands()
        for each in command.params
        if isinstance(each, click.Option) and not each.hidden and each.metavar in {"NODE", "SERVER", "LEAF", "MEMBER"}
    }
    assert named == set()


@pytest.mark.parametrize(
    ("typed", "end"),
    [
        ("status node-2", "argument (node-2); select another node with --node"),
        (
            "publish now",
            "No such command 'now'. The commands of `garlicfarm publish` are cost, exclude, force, include.",
        ),
        ("publish rotate", "No such command 'rotate'. Did you mean 'keys rotate'?"),
        ("servers status", "No such command 'status'. Did you mean 'status' or 'zmq-raft status'?"),
        ("backfill", "No such command 'backfill'. Did you mean 'pipeline backfill'?"),
        ("nosuch", "No such command 'nosuch'."),
    ],
)
def test_wrong_usage_names_the_right_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, end: str
) -> None:
    monkeypatch.setattr("sys.argv", ["garlicfarm", *typed.split()])
    for each in ("guard_streams", "guard_output", "_forbid_core_dumps"):
        monkeypatch.setattr(main_module, each, lambda: None)
    with pytest.raises(SystemExit) as ended:
        main_module.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"{end}\n")


@pytest.mark.parametrize(
    ("path", "spelling", "earlier", "value"),
    [
        *((path, "--watch", ["--follow"], True) for path in ("events", "log", "kraft log")),
        ("up", "--nodes", ["--servers", "5"], 5),
    ],
)
def test_earlier_spelling_is_accepted_and_not_shown(
    path: str, spelling: str, earlier: list[str], value: object
) -> None:
    shown = CliRunner().invoke(cli, [*path.split(), "--help"]).output
    assert spelling in shown
    assert earlier[0] not in shown
    command = dict(commands())[path]
    respelled = next(each for each in command.params if spelling in each.opts)
    assert respelled.name is not None
    assert command.make_context(path, earlier).params[respelled.name] == value


class EndedError(Exception):
    """The end of a loop in a test."""


def repeated(outcomes: list[object], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Run a view repeatedly, with these outcomes in order; return the pauses between the runs."""
    pauses: list[float] = []

    def show() -> None:
        outcome = outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome

    monkeypatch.setattr(options, "is_terminal", lambda: False)
    with pytest.raises((EndedError, SystemExit)):
        options._repeat(show, pauses.append)
    return pauses


def test_watch_continues_after_warning_and_lost_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """`status` ends with 3 for a warning, and with 1 while the node does not run. The node may start again."""
    assert repeated([SystemExit(3), None, SystemExit(1), None, EndedError()], monkeypatch) == [2.0] * 4


def test_watch_ends_when_the_first_view_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert repeated([SystemExit(1)], monkeypatch) == []


def test_watch_of_missing_node_ends_with_one(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["status", "--watch", "--node", str(tmp_path / "none")])
    assert done.exit_code == 1
    assert "no node runs at" in done.output


def test_servers_watch_does_not_repeat_subcommands(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["servers", "--watch", "restore", "site-b", "--node", str(tmp_path / "none")])
    assert done.exit_code == 1


@each_case(
    ("path", "words", "name"),
    [
        ("publish force", (DASHED, "--json"), "master"),
        ("publish force", ("--json", DASHED), "master"),
        ("publish exclude", (DASHED, "--yes"), "leaf"),
        ("publish include", (DASHED,), "leaf"),
        ("publish cost", (DASHED, "2"), "leaf"),
        ("publish cost", ("--node", "state", DASHED, "2"), "leaf"),
        ("event", ("deploy", DASHED), "payload"),
        ("event", ("deploy", "-5"), "payload"),
        ("query", ("deploy", "--timeout", "2", DASHED), "payload"),
        ("zmq-raft update", ("--key", DASHED[:64], "--seed", "tcp://127.0.0.1:8047", DASHED), "data"),
    ],
)
def test_argument_may_begin_with_dash(path: str, words: tuple[str, ...], name: str) -> None:
    found = dict(commands())[path].make_context(path, list(words)).params[name]
    [found] = found if name == "data" else [found]
    assert (found, type(found)) == ("-5" if "-5" in words else DASHED, str)


@pytest.mark.parametrize(("typed", "error"), [("--jsno", "'--jsno'. (Did you mean one of: '--json"), ("-json", "'-j'")])
def test_misspelled_option_next_to_base64_is_refused(typed: str, error: str) -> None:
    done = CliRunner().invoke(cli, ["publish", "force", DASHED, typed])
    assert (done.exit_code, f"No such option {error}" in done.output) == (2, True), done.output


@each_case(
    "words",
    [
        ("query", "ping", "--timeout", "nan"),
        ("up", "--for", "nan"),
        ("simulate", "gossip", "--loss", "nan"),
        ("connect", "--patience", "nan"),
        ("publish", "cost", "leaf", "nan"),
        ("publish", "cost", "leaf", "inf"),
    ],
)
def test_value_outside_numbers_of_range_is_refused(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, words)
    assert (done.exit_code, "Invalid value for" in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("force", DASHED, DASHED), f"Got unexpected extra argument ({DASHED})"),
        (("cost", "leaf", DASHED), f"Invalid value for 'FACTOR': '{DASHED}' is not"),
    ],
)
def test_error_shows_argument_in_base64_unchanged(words: tuple[str, ...], error: str) -> None:
    done = CliRunner().invoke(cli, ["publish", *words])
    assert (done.exit_code, error in done.output) == (2, True), done.output


def test_dash_is_a_stream_or_refused() -> None:
    """If `backup -` made a file named `-`, the pipe would receive the command's text."""
    every = (*commands(), *commands(pipeline, ("pipeline",)))
    found = [(path, each) for path, command in every for each in command.params]
    named = [(path, each) for path, each in found if isinstance(each.type, click.Path)]
    for path, parameter in named:
        kind = parameter.type
        assert isinstance(kind, click.Path)
        if not (kind.allow_dash or kind.exists or not kind.file_okay or path == "log verify"):
            with pytest.raises(click.BadParameter, match="neither standard input nor output"):
                kind.convert("-", parameter, None)
    assert {"backup", "debug", "keys export", "pipeline report"} <= {path for path, _ in named}
