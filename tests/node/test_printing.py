"""Foreign text in every output of the process: no control characters, extra lines, hidden or reversed characters.

The last tests search the sources for output calls: each output function must have a test here.
"""

import ast
import io
import json
import logging
import sys
import unicodedata
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from bridge.api.entry_words import Names
from bridge.api.events import event_text
from bridge.api.log import EntryKind, LogEntryView
from bridge.api.printable import printable, table_lines, wrapped
from bridge.api.trace import TraceEvent
from bridge.cli import failure, printing
from bridge.cli.log import _line
from bridge.cli.main import main
from bridge.node.control.metrics import exposition
from bridge.tui.history import History
from bridge.tui.layout import COLORS, Canvas
from bridge.tui.overview import FarmRow, OverviewState, overview_lines
from bridge.tui.panes import ScreenData, draw
from bridge.tui.state import Pane, ViewState
from pipeline.serve import printing as pipeline_printing
from tests.effort import each_case
from tests.operator_views import farm_view

ROOT = Path(__file__).parents[2]
HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07",
    "name\nnode-1 leader-elected term=9",
    "name\r\x9b31m",
    "txt\u202egnp.exe",
    "a\u2066b\u2069",
    "no\u200bde\u200d\ufeff",
    "\u2028\u2029\x85\x0b\x0c",
    "\ud800",
    "\ue000\U000e0041",
    "\u115f\u3164\u2800\ufe0f\u034f",
    "[red]bold[/red] [link=http://x]",
    "\u0378",
)
TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(), st.text(alphabet=st.characters(categories=["C", "Z"])))
FORBIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def is_encodable(text: str) -> bool:
    """Return True if the text can be UTF-8, as JSON and Prometheus text require."""
    return not any(unicodedata.category(letter) == "Cs" for letter in text)


def check_harmless(text: str, lines: int | None = None) -> None:
    """Check that no character moves, hides or reverses text, and that the text has at most `lines` line ends."""
    bad = [letter for letter in text if letter != "\n" and unicodedata.category(letter) in FORBIDDEN_CATEGORIES]
    assert not bad, f"{bad!r} in {text!r}"
    assert lines is None or text.count("\n") <= lines, text


def printed(function: Any, *arguments: Any, **options: Any) -> str:
    """Return the output of a call on both streams."""

    @click.command()
    def command() -> None:
        function(*arguments, **options)

    return CliRunner().invoke(command).output


@given(TEXTS)
def test_printable_text_is_one_line_of_visible_characters(text: str) -> None:
    shown = printable(text)
    check_harmless(shown, 0)
    assert printable(shown) == shown


@each_case("text", ["node-1", "Köln", "日本", "서버", "é", "→ 5 ms", 'say "x" \\ 50 %', "[red]"])
def test_ordinary_text_of_any_language_is_unchanged(text: str) -> None:
    assert printable(text) == text


def test_escapes_identify_character() -> None:
    assert printable("\x1b\u202e\U000e0041\n") == r"\x1b\u202e\U000e0041\x0a"


@given(TEXTS)
def test_line_printers_print_one_harmless_line(text: str) -> None:
    check_harmless(printed(printing.echo, text), 1)
    check_harmless(printed(printing.echo, text, bold=True, mark=text), 1)
    check_harmless(printed(printing.print_table, ("HEAD",), [(text,)]), 2)
    check_harmless(printed(printing.print_facts, [(text, text)]), 1)
    check_harmless(printed(pipeline_printing.echo, text, bold=True), 1)
    check_harmless(printed(pipeline_printing.print_csv, [[text, 5]]), 1)


@each_case(
    ("text", "taken", "lines"),
    [
        ("state is in ./farm-state", 6, ["state is in", "      ./farm-state"]),
        ("  two words, then more", 0, ["  two words, then", "    more"]),
        ("run `garlicfarm log verify raft` first", 0, ["run", "  `garlicfarm log verify raft`", "  first"]),
        ("to start it:  garlicfarm run --state-dir 'a  b'", 0, ["to start it:", "  garlicfarm run --state-dir 'a  b'"]),
        ("x" * 30, 4, ["x" * 30]),
        ("x" * 30 + " y", 0, ["x" * 30, "  y"]),
    ],
)
def test_wrapped_text_keeps_commands_and_long_words(text: str, taken: int, lines: list[str]) -> None:
    assert wrapped(text, 20, taken) == lines


@given(TEXTS, st.integers(10, 100), st.integers(0, 30))
def test_wrapped_text_has_all_words_within_the_width(text: str, columns: int, taken: int) -> None:
    text = printable(text).replace("`", "").replace(":", "")
    lines = wrapped(text, columns, taken)
    assert " ".join(lines).split() == text.split()
    long = [line for number, line in enumerate(lines) if len(line) + (0 if number else taken) > columns]
    assert all(len(line.split()) == 1 for line in long if line.strip())


@pytest.mark.parametrize("module", [printing, pipeline_printing])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_line_is_wrapped_on_terminal_only(
    module: Any, *, is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    text = "the node does not reply in time"
    module.echo(text)
    assert capsys.readouterr().out == ("the node does not\n  reply in time\n" if is_terminal else f"{text}\n")
    module.echo_whole(text)
    assert capsys.readouterr().out == f"{text}\n"


ROWS = [("1", "x" * 30), ("2", "short")]
WHOLE = f"ID  VALUE\n1   {'x' * 30}\n2   short\n"


@pytest.mark.parametrize(
    ("columns", "is_terminal", "is_kept", "shown"),
    [
        (34, True, False, WHOLE),
        (33, False, False, WHOLE),
        (33, True, True, WHOLE),
        (33, True, False, f"ID\n    VALUE\n1\n    {'x' * 30}\n2\n    short\n"),
        (4, True, False, f"ID\n    VALUE\n1\n    {'x' * 30}\n2\n    short\n"),
    ],
)
def test_table_is_whole_if_it_fits_or_is_requested(
    columns: int, shown: str, *, is_terminal: bool, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(printing, "is_terminal", lambda: is_terminal)
    assert printed(printing.print_table, ("ID", "VALUE"), ROWS, is_kept=is_kept) == shown


def test_row_on_narrow_terminal_continues_in_further_lines() -> None:
    rows = [("1", "node-1", "no reply yet"), ("2", "", "")]
    lines = [line for line, _ in table_lines(("ID", "NAME", "REASON"), rows, 14)]
    assert lines == ["ID  NAME", "    REASON", "1   node-1", "    no reply", "      yet", "2"]


def test_long_value_in_last_column_is_wrapped_in_it() -> None:
    lines = [line for line, _ in table_lines(("ID", "REASON"), [("12", "word " * 12)], 40)]
    assert lines == ["ID  REASON", "12  " + " ".join(["word"] * 7), "    " + " ".join(["word"] * 5)]


def test_row_of_too_many_lines_has_line_per_value() -> None:
    lines = table_lines(("A", "B", "C", "D"), [("1 2 3 4", "xxxxxxx", "2", "3" * 9), ("", "", "", "")], 9)
    assert [line for line, _ in lines][:5] == ["A  1 2 3", "   4", "B  xxxxxxx", "C  2", "D  333333333"]


def test_row_of_empty_values_has_line() -> None:
    """For example, a query in a pipe has as many lines as rows."""
    assert [line for line, _ in table_lines(("VALUE",), [("",), ("x",)], None)] == ["VALUE", "", "x"]


def test_narrow_table_without_rows_has_headings() -> None:
    assert [line.strip() for line, _ in table_lines(("AA", "BB", "CC", "DD"), [], 4)] == ["AA", "BB", "CC", "DD"]


@given(TEXTS)
def test_failure_and_confirmation_are_harmless(text: str) -> None:
    shown = printed(failure.fail, text)
    check_harmless(shown)
    assert all(line.startswith(("garlicfarm: ", "  ")) for line in shown.splitlines())
    check_harmless(printed(failure.confirm, text, yes=False))


@given(TEXTS)
def test_log_record_is_one_line_apart_from_traceback(text: str) -> None:
    formatter = printing.PrintableFormatter("%(asctime)s %(name)s: %(message)s")
    ended = (ValueError, ValueError(text), None)
    with_trace = logging.LogRecord("n", logging.ERROR, "f", 1, "%s", (text,), ended)
    first, *rest = formatter.format(with_trace).split("\n")
    check_harmless(first, 0)
    assert rest
    for line in rest:
        check_harmless(line, 0)
        assert line.startswith("  | ")


@given(TEXTS)
def test_exception_of_command_is_printed_harmlessly(text: str) -> None:
    error = ValueError(text)
    check_harmless(printed(printing.print_exception, ValueError, error, None))


@given(TEXTS.filter(is_encodable))
def test_json_is_exact_and_harmless(text: str) -> None:
    for function in (printing.print_json, printing.print_json_line):
        shown = printed(function, {"text": text, text: 1})
        check_harmless(shown)
        assert json.loads(shown)["text"] == text
    shown = printed(pipeline_printing.print_json, json.dumps({"text": text}))
    check_harmless(shown)
    assert json.loads(shown) == {"text": text}


@given(TEXTS)
def test_entry_and_event_are_one_harmless_line(text: str) -> None:
    entry = LogEntryView.of(1, 1, EntryKind.APPLICATION, None, text.encode(errors="surrogatepass"))
    check_harmless(printed(printing.echo, _line(entry)), 1)
    event = TraceEvent(1, 0, None, "member-joined", text, {"name": text, "reason": text})
    check_harmless(printed(printing.echo, f"{event.node} {event_text(event)}"), 1)


@given(TEXTS)
def test_live_view_draws_hostile_names_as_text(text: str) -> None:
    view = farm_view()
    hostile = replace(
        view,
        node=replace(view.node, name=text, version=text),
        members=tuple(replace(each, name=text) for each in view.members),
        alarms=tuple(replace(each, text=text, action=text) for each in view.alarms),
    )
    history = History()
    history.story.add([TraceEvent(1, 0, None, text, text, {"name": text})])
    entry = LogEntryView.of(1, 1, EntryKind.APPLICATION, None, text.encode(errors="surrogatepass"))
    history.read([entry], Names(hostile))
    seen = ScreenData(hostile, history, text)
    pictures = [draw(ViewState(pane=pane, filter=text[:5]), seen, 100, 30) for pane in Pane]
    pictures.append(draw(ViewState(editing=text, notice=text), seen, 100, 30))
    pictures.append(draw(ViewState(), ScreenData(None, history, reason=text), 100, 30))
    row = FarmRow(name=text, farm=hostile, age_ms=0, is_old=False, reason=text)
    for each in (row, structs.replace(row, farm=None)):
        lines = overview_lines(OverviewState(), [each], Canvas(100, COLORS), 30)
        pictures.append(Group(Text("\n", end="").join(lines)))
    for picture in pictures:
        console = Console(file=io.StringIO(), width=100, force_terminal=False, color_system=None)
        console.print(picture)
        assert isinstance(console.file, io.StringIO)
        check_harmless(console.file.getvalue(), 31)


@given(TEXTS)
def test_pipeline_table_does_not_interpret_markup(text: str) -> None:
    table = Table("cell", box=None)
    shown = printed(pipeline_printing.print_table, table, [(text,)])
    check_harmless(shown)
    if text == "[red]x[/red]":
        assert text in shown


@given(TEXTS.filter(is_encodable))
def test_metric_labels_are_harmless(text: str) -> None:
    view = farm_view()
    check_harmless(exposition(replace(view, node=replace(view.node, name=text, version=text))).decode())


def test_argument_quoted_by_click_is_harmless(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["garlicfarm", "restore", "\x1b[2Jno\nsuch", "--state-dir", "x"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    output = capsys.readouterr().err
    assert "\x1b" not in output
    assert "no\nsuch" not in output


PRINTING_CALLS = {"click.echo", "click.secho", "click.confirm", "click.prompt", "click.echo_via_pager", "print"}
MAY_PRINT = {"bridge/cli/printing.py", "pipeline/serve/printing.py"}
DRAWS = {"bridge/tui/screen.py", "bridge/tui/top.py", "bridge/tui/farms.py", "bridge/cli/simulate.py"}
"""These modules draw text escaped by `bridge.tui.layout`, or a progress bar with our own text."""


OUTPUT = (
    *(f"{each}(" for each in sorted(PRINTING_CALLS)),
    ".stdout.write(",
    ".stderr.write(",
    ".from_markup(",
    "Console(",
    "Handler(",
)
"""A source without any of these texts is not parsed, because no call in it prints."""


def called(node: ast.Call) -> str:
    return ast.unparse(node.func)


@pytest.mark.parametrize("package", ["bridge", "gossip", "consensus", "pipeline"])
def test_print_is_called_only_in_escaping_modules(package: str) -> None:
    """The test finds a new output call. It belongs in a module of MAY_PRINT, with a test above."""
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        name, source = path.relative_to(ROOT).as_posix(), path.read_text()
        if name in MAY_PRINT or not any(each in source for each in OUTPUT):
            continue
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Call):
                continue
            call = called(node)
            writes = call.endswith((".stdout.write", ".stderr.write", ".from_markup")) or call in PRINTING_CALLS
            draws = call in {"Console", "rich.print"} or call.endswith("console.print")
            handles = call.endswith((".StreamHandler", ".FileHandler")) and name != "bridge/cli/node_log.py"
            if writes or handles or (draws and name not in DRAWS):
                found.append(f"{name}:{node.lineno} {call}")
    assert not found, "these calls print foreign text without escaping:\n" + "\n".join(found)


def test_live_view_text_is_created_only_by_layout() -> None:
    """The layout escapes foreign text before it creates a `Text`. The other modules create it only from constants."""
    makers = {
        path.name
        for path in (ROOT / "bridge" / "tui").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and called(node) in {"Text", "Text.assemble"}
        and node.args
        and not isinstance(node.args[0], ast.Constant)
    }
    assert makers == {"layout.py"}
