"""Options and kinds of arguments that several commands share. `bridge.cli.node_queries` has options for queries.

    --json              print JSON with the documented keys
    --output PATH       the new file, directory or archive that the command writes
    --timeout SECONDS   the limit for replies
    --watch             print new items when they arrive, or repeat a view, until Ctrl-C

Earlier spellings (`--follow`, `--out`, `-w json`, `up --servers`) still work; the help does not show them.
"""

import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, Final, SupportsIndex, TypeVar

import click

from bridge.cli.failure import REFUSED, interruptible
from bridge.cli.printing import echo, is_terminal
from consensus.storage import errors_with_path, replace_file

LEAST_TIMEOUT_S: Final = 0.1
MOST_TIMEOUT_S: Final = 3600.0
WATCH_PERIOD_S: Final = 2.0
_AGO: Final = re.compile(r"([0-9]{1,6})([smhd])")
_DASHED: Final = re.compile(r"-([0-9.]+|[A-Za-z0-9_~-]{40,}={0,2})")
"""Arguments that begin with a dash and are not options: negative numbers, and base64 texts, longer than any option."""
_HYPHEN: Final = "\ue000"
"""Replacement for a hyphen while click wraps a line: it breaks lines at hyphens."""
_SUMMARY: Final = 1000
"""Limit in characters for the summary of a command. It is above every summary, so click cuts none."""
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

F = TypeVar("F", bound=Callable[..., object])

yes_option = click.option("--yes", is_flag=True, help="Do not prompt.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON with the documented keys.")


class _Text(str):
    """An argument that begins with a dash. click recognizes options by the slice `[:1]`, which is empty here."""

    __slots__ = ()

    def __getitem__(self, key: SupportsIndex | slice, /) -> str:
        return "" if key == slice(1) else super().__getitem__(key)


class SummaryGroup(click.Group):
    """A group whose help contains the whole first sentence of each command; click cuts it at the width."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line for each command, wrapped at words."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(_SUMMARY)) for name, each in commands if each])


class _WholeWords(click.HelpFormatter):
    """A help page whose lines do not break at the hyphens of options and paths, so that users can copy these."""

    def write(self, string: str) -> None:
        """Write text with its hyphens."""
        super().write(string.replace(_HYPHEN, "-"))

    def write_text(self, text: str) -> None:
        """Write a paragraph."""
        super().write_text(text.replace("-", _HYPHEN))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write a list of options or commands."""
        super().write_dl([(name, text.replace("-", _HYPHEN)) for name, text in rows], col_max, col_spacing)


click.Context.formatter_class = _WholeWords


class DashedCommand(click.Command):
    """A command whose arguments may begin with a dash: negative numbers, and one of 64 base64 texts."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; an argument with a dash is text."""
        return super().parse_args(ctx, [_Text(each) if _DASHED.fullmatch(each) else each for each in args])


class IntegerRange(click.IntRange):
    """A range of whole numbers. click's error contains `name`: without it, "is not a valid integer range"."""

    name = "integer"


class NumberRange(click.FloatRange):
    """A range of numbers without NaN, which click accepts in every range."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


class NamedPath(click.Path):
    """A path that must not be `-`: a command that does not use standard streams would create a file of that name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if value == "-":
            self.fail("'-' is neither standard input nor output here; name a file.", param, ctx)
        return super().convert(value, param, ctx)


class RespelledOption(click.Option):
    """An option with earlier spellings; the help shows only the first spelling, the present one."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the present spelling and its meaning."""
        accepted, self.opts = self.opts, self.opts[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = accepted


def output_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--json` to a command, and a hidden `-w json`, as in other tools for clusters; the command gets `as_json`."""

    @click.option("-w", "--output", "output", type=click.Choice(("table", "json")), default="table", hidden=True)
    @json_option
    @wraps(command)
    def with_output(*arguments: object, output: str, as_json: bool, **others: object) -> None:
        command(*arguments, as_json=as_json or output == "json", **others)

    return with_output


def timeout_option(
    parameter: str, meaning: str, *, default_s: float | None = None, most_s: float = MOST_TIMEOUT_S, **options: Any
) -> Callable[[F], F]:
    """Return the option `--timeout` with this meaning; the command gets the seconds as `parameter`."""
    return click.option(
        "--timeout",
        parameter,
        type=NumberRange(LEAST_TIMEOUT_S, most_s),
        metavar="SECONDS",
        default=default_s,
        show_default=default_s is not None,
        help=meaning,
        **options,
    )


def watch_option(items: str) -> Callable[[F], F]:
    """Return the option `--watch` of a command that prints items; the command gets `follow`."""
    return click.option(
        "--watch", "--follow", "follow", cls=RespelledOption, is_flag=True, help=f"Print {items}, until Ctrl-C."
    )


def watchable(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that prints a view the option `--watch`, which repeats it."""

    @click.option("--watch", is_flag=True, help=f"Print it again every {WATCH_PERIOD_S:g} s, until Ctrl-C.")
    @wraps(command)
    def repeated(*arguments: object, watch: bool, **others: object) -> None:
        if not watch or click.get_current_context().invoked_subcommand is not None:
            command(*arguments, **others)
            return
        with interruptible():
            _repeat(lambda: command(*arguments, **others))

    return repeated


def _repeat(show: Callable[[], None], sleep: Callable[[float], None] = time.sleep) -> None:
    """Repeat a view. If the first attempt fails, this ends; after a later failure the node may return."""
    is_first = True
    while True:
        if is_terminal():
            click.clear()
        elif not is_first:
            echo()
        try:
            show()
        except SystemExit as ended:
            if is_first and ended.code == REFUSED:
                raise
        sys.stdout.flush()
        is_first = False
        sleep(WATCH_PERIOD_S)


def moment_ms(text: str) -> int:
    """Return the moment in an option `--since`, in ms of Unix time.

    An age counts back from this machine's clock. A time of day is today's in UTC; a date is in UTC unless it has an
    offset.
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return int(time.time() * 1000) - int(ago[1]) * _UNITS_MS[ago[2]]
    try:
        today = f"{datetime.now(UTC):%Y-%m-%d}T" if len(text) <= len("hh:mm:ss") else ""
        moment = datetime.fromisoformat(today + text)
    except ValueError as error:
        examples = "90s, 10m, 2h, 1d, 10:45, 10:45:27 or 2026-11-25T10:45"
        raise click.UsageError(f"--since is {text!r}, which is not a time such as {examples}") from error
    return int((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)


wide_option = click.option(
    "--wide", is_flag=True, help="Print the full table, even on a terminal that is narrower than its rows."
)
file_path = NamedPath(path_type=Path, dir_okay=False)
directory_path = click.Path(path_type=Path, file_okay=False)


def write_user_file(path: Path, text: str) -> None:
    """Write a file that the user named; raise OSError.

    A regular file is replaced durably: it never has only a part of the new content. A symbolic link remains, and its
    target is replaced. Other files, such as a FIFO or a device, are written in place.
    """
    if path.exists() and not path.is_file():
        with errors_with_path(path):
            path.write_text(text, encoding="utf-8")
        return
    os.umask(umask := os.umask(0o077))
    replace_text(Path(os.path.realpath(path)), text, 0o666 & ~umask)


def replace_text(path: Path, text: str, mode: int) -> None:
    """Durably replace a file, or create it with a mode; raise OSError.

    A replaced file keeps its mode. It keeps its owner only if this process is root's.
    """
    status = path.stat() if path.exists() else None
    owner = None if status is None or os.geteuid() != 0 else (status.st_uid, status.st_gid)
    replace_file(path, text.encode(), mode if status is None else status.st_mode & 0o777, owner)
