"""Secrets of commands: no option requires a secret on the command line, and secrets do not reach a core dump."""

import resource
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bridge.cli import main as main_module
from bridge.cli.kraft.format import format_command
from bridge.cli.main import cli
from bridge.cli.zmq_raft.options import IDENT_VARIABLE, ident_option

SECRET_WORDS = ("password", "secret", "token", "scram", "ident", "webhook", "jaas")
SAFE_WAYS = ("file", "command line", "@-")
"""Terms in help texts that name an alternative to the command line."""


@click.command()
@ident_option
def show_ident(ident: str) -> None:
    click.echo(ident)


@pytest.mark.parametrize("arguments", [["--ident", "@FILE"], ["--ident", "@-"], ["--ident", "cluster-7"], []])
def test_ident_is_read_from_file_stream_or_environment(tmp_path: Path, arguments: list[str]) -> None:
    file = tmp_path / "ident"
    file.write_text("cluster-7\n")
    given = [each.replace("FILE", str(file)) for each in arguments]
    result = CliRunner().invoke(show_ident, given, input="cluster-7\nmore", env={IDENT_VARIABLE: "cluster-7"})
    assert result.output == "cluster-7\n"


def test_ident_in_unreadable_file_is_refused_with_remedy(tmp_path: Path) -> None:
    (binary := tmp_path / "binary").write_bytes(b"\xff")
    for file, remedy in (
        (Path("/nowhere/ident"), "; the directory /nowhere does not exist: name another place"),
        (tmp_path / "absent", "No such file or directory; name another file"),
        (binary, "; write it in UTF-8"),
    ):
        result = CliRunner().invoke(show_ident, ["--ident", f"@{file}"])
        assert result.exit_code == 1
        assert f"{file} cannot be read: " in result.stderr
        assert remedy in result.stderr


@pytest.mark.parametrize("from_stream", [True, False])
def test_scram_users_are_read_from_file(tmp_path: Path, *, from_stream: bool) -> None:
    config = tmp_path / "server.properties"
    config.write_text(
        f"process.roles=controller\nnode.id=1\nlog.dirs={tmp_path / 'log'}\n"
        "controller.listener.names=CONTROLLER\nlisteners=CONTROLLER://127.0.0.1:9093\n"
        "controller.quorum.bootstrap.servers=127.0.0.1:9093\n"
    )
    users = tmp_path / "users"
    users.write_text("SCRAM-SHA-256=[name=alice,password=wonderland]\n\n")
    given = ["--config", str(config), "--random-cluster-id", "--standalone", "--add-scram-file"]
    given.append("-" if from_stream else str(users))
    result = CliRunner().invoke(format_command, given, input=users.read_text())
    assert result.exit_code == 0, result.output
    assert b"alice" in b"".join(each.read_bytes() for each in (tmp_path / "log").rglob("*") if each.is_file())


def _options(command: click.Command, path: str = "") -> list[tuple[str, click.Option]]:
    name = f"{path} {command.name}".strip()
    if isinstance(command, click.Group):
        context = click.Context(command)
        found = [command.get_command(context, each) for each in command.list_commands(context)]
        return [option for each in found if each is not None for option in _options(each, name)]
    return [(name, each) for each in command.params if isinstance(each, click.Option)]


def _bare(options: list[tuple[str, click.Option]]) -> list[str]:
    """Return the options for secrets whose help text does not name an alternative."""
    return [
        f"{name} {option.opts[0]}"
        for name, option in options
        if any(word in f"{option.opts} {option.metavar} {option.help}".lower() for word in SECRET_WORDS)
        and not isinstance(option.type, click.Path)
        and not option.is_flag
        and not any(way in (option.help or "").lower() for way in SAFE_WAYS)
    ]


def test_secret_options_name_alternative_to_command_line() -> None:
    """A new option for a secret is detected by its name, metavar or help."""
    options = _options(cli)
    assert len(options) > 100
    assert _bare(options) == []


def test_planted_option_with_secret_is_detected() -> None:
    planted = click.Option(["--api-key"], metavar="SECRET", help="For the server.")
    assert _bare([("planted", planted)]) == ["planted --api-key"]


def test_commands_disable_core_dumps() -> None:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    try:
        main_module._forbid_core_dumps()
        assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)


def test_packaged_services_disable_core_dumps() -> None:
    services = sorted((Path(__file__).parents[2] / "deploy" / "debian").glob("*.service"))
    assert len(services) == 2
    assert [each.name for each in services if "\nLimitCORE=0\n" not in each.read_text()] == []
