"""The output of the command line, to people and to pipes: the one place where text leaves the process.

    echo       one line; foreign text in it cannot begin another one, or move the cursor; a terminal gets it wrapped
    echo_whole   one line without this wrapping: a command, a key or a file to copy
    print_*    tables and facts: aligned columns that are never cut; on a terminal, no word is broken
    print_markdown   a document of the project, as wide as the terminal; letters that it cannot show become "?"
    json_text   exact JSON, with escapes for invisible letters
    PrintableFormatter, print_exception   log records, and the exception that ends a command
    RepeatLimit   logs a limited number of lines of one cause in a period; then the number of the others
    written_apart   while a command serves, a thread writes its lines (`serving.line_writer`)

A test checks that nothing under `bridge` prints without this module.
"""

import codecs
import io
import logging
import os
import re
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import click

from bridge.api.printable import GAP, is_printable, printable, table_lines, wrapped
from bridge.cli.serving.line_writer import LineWriter

if TYPE_CHECKING:
    from msgspec import Struct

Answer = TypeVar("Answer")
DOCUMENT_COLUMNS = 100
TRACEBACK_PERIOD_S = 60.0
_CAUSES_MAX = 1024
_TRACEBACK_MARK = "  | "
_WITHOUT_LETTER = "garlicfarm-without-letter"
_STAND_INS = {
    "…": "~",
    "—": "-",
    "\u2013": "-",
    "\u00d7": "x",
    "µ": "u",
    "↑": "^",
    "↓": "v",
    "→": ">",
    "←": "<",
    "•": "*",
    "▸": ">",
    "▏": "_",
    "▁": "_",
    "▂": ".",
    "▃": ":",
    "▄": "-",
    "▅": "+",
    "▆": "=",
    "▇": "*",
    "█": "#",
    "│": "|",
}
"""Replacements for letters that an output's encoding lacks, each one column wide, so that columns stay aligned."""
_WRITERS: dict[bool, LineWriter] = {}
"""Writers of stdout (False) and stderr (True), while a command serves."""
_CANNOT_DRAW = frozenset({"dumb", "unknown", ""})
_NOT_ASCII = re.compile(r"[^\n\x20-\x7e]")


def echo(text: str = "", *, err: bool = False, bold: bool = False, mark: str = "", color: str | None = None) -> None:
    """Print one line. `mark` comes before it, in `color`; only this module's own styles reach the terminal."""
    shown, before = printable(text), printable(mark)
    if (sys.stderr if err else sys.stdout).isatty():
        shown = "\n".join(wrapped(shown, terminal_columns(), len(before)))
    styled = click.style(shown, bold=True) if bold else shown
    _put((click.style(before, fg=color, bold=color is None) if mark else "") + styled, err=err)


def echo_whole(text: str, *, bold: bool = False) -> None:
    """Print one line that a terminal may break within a word."""
    shown = printable(text)
    _put(click.style(shown, bold=True) if bold else shown, err=False)


def echo_parts(parts: Sequence[tuple[str, str | None]]) -> None:
    """Print one line of texts, each in its color; NO_COLOR in the environment switches the colors off."""
    plain = bool(os.environ.get("NO_COLOR"))
    shown = [(printable(text), None if plain else color) for text, color in parts]
    if is_terminal():
        text, color = shown.pop()
        before = sum(len(text) for text, _ in shown)
        shown.append(("\n".join(wrapped(text, terminal_columns(), before)), color))
    _put("".join(text if color is None else click.style(text, fg=color) for text, color in shown).rstrip(), err=False)


@contextmanager
def written_apart() -> Iterator[None]:
    """Write the lines in a thread while the block lasts: a server must not wait for a reader of its output."""
    _WRITERS.update({False: LineWriter(sys.stdout), True: LineWriter(sys.stderr)})
    try:
        yield
    finally:
        for writer in _WRITERS.values():
            writer.close()
        _WRITERS.clear()


def _put(text: str, *, err: bool) -> None:
    writer, stream = _WRITERS.get(err), sys.stderr if err else sys.stdout
    if writer is None:
        click.echo(text, err=err)
    else:
        writer.write(text if stream.isatty() else click.unstyle(text))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, is_kept: bool = False) -> None:
    """Print rows below their headings; on a narrower terminal, in several lines, unless `is_kept`."""
    for line, is_heading in table_lines(headings, rows, terminal_columns() if is_terminal() and not is_kept else None):
        echo_whole(line, bold=is_heading)


def print_picture(lines: Sequence[str]) -> None:
    """Print lines black on white: a camera reads a QR code only in these colors."""
    for line in lines:
        _put(click.style(line, fg="black", bg="bright_white"), err=False)


def terminal_columns() -> int:
    """Return the width of the terminal."""
    return shutil.get_terminal_size().columns


def is_terminal() -> bool:
    """Return True if stdout is a terminal."""
    return sys.stdout.isatty()


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print named facts; a fact without a name continues the previous one."""
    width = max((len(name) for name, _ in facts), default=0)
    for name, text in facts:
        echo(f"{GAP}{text}", mark=name.ljust(width))


def print_json(document: "Struct") -> None:
    """Print a document as indented JSON."""
    import msgspec  # noqa: PLC0415 - most commands print text

    click.echo(_encodable_json(json_text(msgspec.json.format(_encoded(document), indent=2).decode())))


def end_with_json(document: "Struct", *, as_json: bool) -> None:
    """Print the document as JSON and end the command, if the user gave `--json`."""
    if as_json:
        print_json(document)
        sys.exit()


def print_json_line(document: "Struct") -> None:
    """Print a document as one line of JSON."""
    _put(_encodable_json(json_text(_encoded(document).decode())), err=False)


def _encoded(document: "Struct") -> bytes:
    from bridge.api.json import encode  # noqa: PLC0415 - as above

    return encode(document)


def print_markdown(text: str) -> None:
    """Lay out a document of the project: at most 100 columns wide, plain if the output is not a terminal."""
    # Imported here: only `help` lays out Markdown, and other commands start without the modules for it.
    from rich.console import Console  # noqa: PLC0415
    from rich.markdown import Markdown  # noqa: PLC0415

    encoding = sys.stdout.encoding or "utf-8"
    output = io.TextIOWrapper(io.BytesIO(), encoding, errors="replace", newline="")
    width = min(shutil.get_terminal_size().columns, DOCUMENT_COLUMNS)
    console = Console(file=output, width=width, force_terminal=sys.stdout.isatty(), highlight=False)
    console.print(Markdown(text, hyperlinks=False, code_theme="ansi_dark"))
    output.seek(0)
    lines = output.read().splitlines()
    click.echo("\n".join(line.rstrip() for line in lines))


def json_text(text: str) -> str:
    """Return the JSON with escapes for invisible letters except line breaks; JSON has such letters only in strings."""
    return _NOT_ASCII.sub(lambda found: found[0] if is_printable(found[0]) else _json_escape(found[0]), text)


def ascii_json(text: str) -> str:
    """Return the JSON with escapes for everything beyond ASCII, for any output."""
    return _NOT_ASCII.sub(lambda found: _json_escape(found[0]), text)


def _encodable_json(text: str) -> str:
    """Return the JSON with escapes for everything beyond ASCII if the output cannot represent it."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return ascii_json(text)
    return text


def _json_escape(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


def ask_yes_or_no(question: str, *, default: bool = False) -> bool:
    """Return the answer of the user at the terminal; raise click.Abort without one."""
    shown = printable(question)
    if sys.stderr.isatty():
        shown = "\n".join(wrapped(shown, terminal_columns() - len(" [y/N]: ")))
    return _answer(lambda: click.confirm(shown, default, err=True))


def ask_text(question: str) -> str:
    """Return the line that the user types at the terminal; raise click.Abort without one."""
    return _answer(
        lambda: str(click.prompt(printable(question), default="", show_default=False, prompt_suffix=" ", err=True))
    )


def ask_secret(question: str) -> str:
    """Return the line that the user types at the terminal, and do not show it; raise click.Abort without one."""
    return _answer(lambda: str(click.prompt(printable(question), hide_input=True, err=True)))


def _answer(prompt: Callable[[], Answer]) -> Answer:
    """Return the answer; Ctrl-C, which click reports like a missing answer, ends the command."""
    try:
        return prompt()
    except click.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


class PrintableFormatter(logging.Formatter):
    """Formats a record as one line, and marks the lines of a traceback, so that none of them looks like a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, and the marked lines of a traceback."""
        record.message = record.getMessage()
        if self.usesTime():
            record.asctime = self.formatTime(record, self.datefmt)
        lines = [printable(self.formatMessage(record))]
        if record.exc_info:
            lines += _marked(self.formatException(record.exc_info))
        if record.stack_info:
            lines += _marked(self.formatStack(record.stack_info))
        return "\n".join(lines)


class RepeatLimit(logging.Filter):
    """Passes `most` records of one cause in a period, and counts the others: a log must not be flooded.

    A cause is the `cause` of the record, or its message without the inserted values. The cause of a
    traceback is the place of its error, and one traceback passes in `TRACEBACK_PERIOD_S`: a peer may repeat the error.
    """

    def __init__(self, most: int = 30, period_s: float = 10.0, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most = most
        self._period_s = period_s
        self._clock_s = clock_s
        self._periods: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record is logged; then add the number of omitted earlier records to its text."""
        now_s, most, period_s = self._clock_s(), self._most, self._period_s
        key = record.name, str(getattr(record, "cause", record.msg))
        if record.exc_info and record.exc_info[1] is not None:
            key, most, period_s = (record.name, _place(record.exc_info[1])), 1, TRACEBACK_PERIOD_S
        began_s, count = self._periods.get(key, (now_s, 0))
        left_out = 0
        if now_s - began_s >= period_s:
            left_out, began_s, count = max(0, count - most), now_s, 0
        if len(self._periods) >= _CAUSES_MAX and key not in self._periods:
            self._periods.clear()
        self._periods[key] = (began_s, count + 1)
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} more of this kind were left out)", None
        return count < most


def _place(error: BaseException) -> str:
    """Return the type and the innermost line of an error, or of the first error in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    lines = [f"{frame.f_code.co_filename}:{number}" for frame, number in traceback.walk_tb(error.__traceback__)]
    return f"{type(error).__qualname__} {lines[-1:]}"


def print_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of an exception, with escapes for control characters in foreign texts."""
    for line in _marked("".join(traceback.format_exception(kind, error, trace))):
        click.echo(line, err=True)


def drawing_refusal(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the reason, as text, why stdout cannot show a live view; None if it can."""
    if not sys.stdout.isatty():
        return "stdout is not a terminal"
    if environment.get("TERM", "").lower() in _CANNOT_DRAW:
        return f"a terminal of TERM={environment.get('TERM', '')!r} cannot move its cursor"
    return None


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    """Replace each letter that the output's encoding lacks by one letter."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_STAND_INS.get(each, "?") for each in error.object[error.start : error.end]), error.end


def guard_output() -> None:
    """Escape all later output, also log records and exceptions without a handler; limit repeated log records.

    Letters that the output's encoding lacks are replaced, so that no command fails in a Latin-1 or C locale.
    """
    codecs.register_error(_WITHOUT_LETTER, _stand_in)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_WITHOUT_LETTER)
    sys.excepthook = print_exception
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PrintableFormatter("%(name)s: %(message)s"))
        logging.lastResort.addFilter(RepeatLimit())


def _marked(text: str) -> list[str]:
    return [_TRACEBACK_MARK + printable(line) for line in text.splitlines()]
