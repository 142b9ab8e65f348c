"""The check of a command against the real command line: its name, its options, and its required arguments."""

import re
from collections.abc import Iterator, Sequence

import click

from bridge.cli.main import cli
from tests.remedies.collect import Remedy

_PLACEHOLDER = re.compile(r"^(VALUE|[A-Z][A-Z_]*)(?=$|[/.:,])")
_NEW = "NEW"
"""A file or directory that does not exist yet."""
_SAMPLES = ("3", "value", "00" * 16, "ø", '{"a": 1}')
"""Sample values; one of them fits each type of argument."""


def found_command(words: Sequence[str]) -> tuple[click.Command, list[str], str]:
    """Return the command of these words, the remaining words, and the path; raise `click.UsageError` without one."""
    command: click.Command = cli
    rest, path = list(words), list[str]()
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        context = click.Context(command, info_name=" ".join(path))
        below = command.get_command(context, rest[0])
        if below is None:
            raise click.UsageError(f"{' '.join(path) or 'garlicfarm'} has no command {rest[0]!r}")
        command = below
        path.append(rest.pop(0))
    return command, rest, " ".join(path)


def fault_of(remedy: Remedy) -> str | None:
    """Return the fault of an advised command, or None if it is valid or another program's."""
    words = remedy.words
    if not words:
        return None
    try:
        command, rest, path = found_command(words)
        if not rest:
            return None
        _parse(command, rest, path, is_open=remedy.is_open)
    except click.ClickException as error:
        return f"{remedy.place}: `{remedy.command}`: {error.format_message()}"
    return None


def _parse(command: click.Command, words: Sequence[str], path: str, *, is_open: bool) -> None:
    faults = list[click.ClickException]()
    for arguments in _filled(words):
        try:
            command.make_context(path, arguments)
        except click.exceptions.Exit:
            return
        except click.MissingParameter as error:
            if is_open:
                return
            faults.append(error)
        except click.ClickException as error:
            faults.append(error)
        else:
            return
    raise faults[0]


def _filled(words: Sequence[str]) -> Iterator[list[str]]:
    for sample in _SAMPLES:
        yield ["fresh" if each == _NEW else _PLACEHOLDER.sub(sample, each) for each in words]
