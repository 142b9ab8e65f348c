"""Foreign text on every way out of the process: no control character, no line of its own, no hidden or turned letters.

The paths are enumerated by reading the sources: a new way to print must use one that is driven here.
"""

import ast
import io
import json
import logging
import unicodedata
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from bridge.api.entry_words import Names
from bridge.api.events import event_text
from bridge.api.log import EntryKind, LogEntryView
from bridge.api.printable import printable
from bridge.api.trace import TraceEvent
from bridge.cli import failure, printing
from bridge.cli.log import _line
from bridge.cli.main import main
from bridge.node.control.metrics import exposition
from bridge.tui.history import History
from bridge.tui.panes import Seen, draw
from bridge.tui.state import Pane, ViewState
from pipeline.serve import printing as pipeline_printing
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
    """JSON and Prometheus text are UTF-8, which has no lone surrogates."""
    return not any(unicodedata.category(letter) == "Cs" for letter in text)


def harmless(text: str, lines: int | None = None) -> None:
    """No letter that moves, hides or turns anything; at most so many lines."""
    bad = [letter for letter in text if letter != "\n" and unicodedata.category(letter) in FORBIDDEN_CATEGORIES]
    assert not bad, f"{bad!r} in {text!r}"
    assert lines is None or text.count("\n") <= lines, text


def printed(function: Any, *arguments: Any, **options: Any) -> str:
    """Everything that a call prints, on either stream."""

    @click.command()
    def command() -> None:
        function(*arguments, **options)

    return CliRunner().invoke(command).output


@given(TEXTS)
def test_text_becomes_one_line_of_letters_that_are_seen(text: str) -> None:
    shown = printable(text)
    harmless(shown, 0)
    assert printable(shown) == shown


@pytest.mark.parametrize("text", ["node-1", "Köln", "日本", "서버", "é", "→ 5 ms", 'say "x" \\ 50 %', "[red]"])
def test_ordinary_text_of_any_language_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_escapes_say_which_letter_it_was() -> None:
    assert printable("\x1b\u202e\U000e0041\n") == r"\x1b\u202e\U000e0041\x0a"


@given(TEXTS)
def test_every_way_to_print_a_line_prints_one_harmless_line(text: str) -> None:
    harmless(printed(printing.echo, text), 1)
    harmless(printed(printing.echo, text, bold=True, mark=text), 1)
    harmless(printed(printing.print_table, ("HEAD",), [(text,)]), 2)
    harmless(printed(printing.print_wide_table, ("HEAD",), [(text,)], is_kept=False), 2)
    harmless(printed(printing.print_facts, [(text, text)]), 1)
    harmless(printed(pipeline_printing.echo, text, bold=True), 1)
    harmless(printed(pipeline_printing.print_csv, [[text, 5]]), 1)


ROWS = [("1", "x" * 30), ("2", "short")]


@pytest.mark.parametrize(
    ("columns", "is_terminal", "is_kept"), [(34, True, False), (33, False, False), (33, True, True)]
)
def test_a_wide_table_is_a_table_where_it_fits_or_no_terminal_is_or_it_is_wanted(
    columns: int, *, is_terminal: bool, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(printing, "is_terminal", lambda: is_terminal)
    shown = printed(printing.print_wide_table, ("ID", "VALUE"), ROWS, is_kept=is_kept)
    assert shown == printed(printing.print_table, ("ID", "VALUE"), ROWS)


def test_on_a_narrower_terminal_each_field_of_a_wide_table_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "33")
    monkeypatch.setattr(printing, "is_terminal", lambda: True)
    shown = printed(printing.print_wide_table, ("ID", "VALUE"), ROWS, is_kept=False)
    assert shown == f"ID     1\nVALUE  {'x' * 30}\n\nID     2\nVALUE  short\n"


@given(TEXTS)
def test_a_reason_and_a_question_are_harmless(text: str) -> None:
    shown = printed(failure.fail, text)
    harmless(shown)
    assert all(line.startswith(("garlicfarm: ", "  ")) for line in shown.splitlines())
    harmless(printed(failure.confirm, text, yes=False))


@given(TEXTS)
def test_a_log_record_is_one_line_and_a_traceback_cannot_pass_for_one(text: str) -> None:
    formatter = printing.PrintableFormatter("%(asctime)s %(name)s: %(message)s")
    ended = (ValueError, ValueError(text), None)
    with_trace = logging.LogRecord("n", logging.ERROR, "f", 1, "%s", (text,), ended)
    first, *rest = formatter.format(with_trace).split("\n")
    harmless(first, 0)
    assert rest
    for line in rest:
        harmless(line, 0)
        assert line.startswith("  | ")


@given(TEXTS)
def test_an_exception_that_ends_a_command_is_printed_harmlessly(text: str) -> None:
    error = ValueError(text)
    harmless(printed(printing.print_exception, ValueError, error, None))


@given(TEXTS.filter(is_encodable))
def test_json_is_exact_and_harmless(text: str) -> None:
    for function in (printing.print_json, printing.print_json_line):
        shown = printed(function, {"text": text, text: 1})
        harmless(shown)
        assert json.loads(shown)["text"] == text
    shown = printed(pipeline_printing.print_json, json.dumps({"text": text}))
    harmless(shown)
    assert json.loads(shown) == {"text": text}


@given(TEXTS)
def test_an_entry_and_an_event_are_one_harmless_line(text: str) -> None:
    entry = LogEntryView.of(1, 1, EntryKind.APPLICATION, None, text.encode(errors="surrogatepass"))
    harmless(printed(printing.echo, _line(entry)), 1)
    event = TraceEvent(1, 0, None, "member-joined", text, {"name": text, "reason": text})
    harmless(printed(printing.echo, f"{event.node} {event_text(event)}"), 1)


@settings(max_examples=30)
@given(TEXTS)
def test_the_live_view_draws_hostile_names_as_text(text: str) -> None:
    view = farm_view()
    hostile = replace(
        view,
        node=replace(view.node, name=text, version=text),
        members=tuple(replace(each, name=text) for each in view.members),
        alarms=tuple(replace(each, text=text, action=text) for each in view.alarms),
    )
    history = History()
    history.add([TraceEvent(1, 0, None, text, text, {"name": text})])
    entry = LogEntryView.of(1, 1, EntryKind.APPLICATION, None, text.encode(errors="surrogatepass"))
    history.read([entry], Names(hostile))
    seen = Seen(hostile, history, text)
    pictures = [draw(ViewState(pane=pane, filter=text[:5]), seen, 100, 30) for pane in Pane]
    pictures.append(draw(ViewState(editing=text, notice=text), seen, 100, 30))
    pictures.append(draw(ViewState(), Seen(None, history, reason=text), 100, 30))
    for picture in pictures:
        console = Console(file=io.StringIO(), width=100, force_terminal=False, color_system=None)
        console.print(picture)
        assert isinstance(console.file, io.StringIO)
        harmless(console.file.getvalue(), 31)


@given(TEXTS)
def test_a_table_of_the_pipeline_takes_no_markup(text: str) -> None:
    table = Table("cell", box=None)
    shown = printed(pipeline_printing.print_table, table, [(text,)])
    harmless(shown)
    if text == "[red]x[/red]":
        assert text in shown


@settings(max_examples=30)
@given(TEXTS.filter(is_encodable))
def test_labels_of_metrics_are_harmless(text: str) -> None:
    view = farm_view()
    harmless(exposition(replace(view, node=replace(view.node, name=text, version=text))).decode())


def test_an_argument_that_click_quotes_is_harmless(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["garlicfarm", "restore", "\x1b[2Jno\nsuch", "--state-dir", "x"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "\x1b" not in told
    assert "no\nsuch" not in told


PRINTING_CALLS = {"click.echo", "click.secho", "click.confirm", "click.prompt", "click.echo_via_pager", "print"}
MAY_PRINT = {"bridge/cli/printing.py", "pipeline/serve/printing.py"}
DRAWS = {"bridge/tui/screen.py", "bridge/tui/top.py", "bridge/cli/simulate.py"}
"""They draw what `bridge.tui.layout` has made harmless, and a bar of progress with our own words."""


def called(node: ast.Call) -> str:
    return ast.unparse(node.func)


@pytest.mark.parametrize("package", ["bridge", "gossip", "consensus", "pipeline"])
def test_nothing_prints_past_the_modules_that_escape(package: str) -> None:
    """A new way to print is found here: it belongs into a module of MAY_PRINT, and into a test above."""
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name in MAY_PRINT:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            call = called(node)
            writes = call.endswith((".stdout.write", ".stderr.write", ".from_markup")) or call in PRINTING_CALLS
            draws = call in {"Console", "rich.print"} or call.endswith("console.print")
            handles = call.endswith((".StreamHandler", ".FileHandler")) and name != "bridge/cli/node_log.py"
            if writes or handles or (draws and name not in DRAWS):
                found.append(f"{name}:{node.lineno} {call}")
    assert not found, "these print foreign text as it came:\n" + "\n".join(found)


def test_text_of_the_live_view_is_made_by_the_layout_alone() -> None:
    """`Text` with what others wrote is made where it is escaped; the others make it of nothing but their own words."""
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
