"""Records in a node's own log: each is one line of text or JSON, even if it contains foreign text."""

import json
import logging
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.api.events import event_text, is_warning
from bridge.api.trace import TraceEvent
from bridge.cli.node_log import JsonFormatter, TextFormatter
from bridge.node.settings.choices import LogFormat, LogLevel
from bridge.node.settings.configuration import LogSettings, Overrides, load_configuration
from tests.effort import each_case

FORMATTER = JsonFormatter("node-1")


def record(text: str, level: int = logging.INFO, **more: object) -> logging.LogRecord:
    """Return a record like a logger's, at a fixed time."""
    made = logging.LogRecord("garlicfarm", level, "f", 1, "%s", (text,), None)
    made.created = 1_795_616_217.874
    vars(made).update(more)
    return made


def test_event_line_has_kind_text_and_fields() -> None:
    event = TraceEvent(7, 0, None, "leader-elected", "node-2", {"term": 3})
    line = FORMATTER.format(record(event_text(event), event=event))
    assert line == (
        '{"time":"2026-11-25T14:16:57.874Z","level":"info","node":"node-2","event":"leader-elected",'
        '"text":"node-2 leads in term 3","fields":{"term":3}}'
    )


@pytest.mark.parametrize(
    ("level", "word"), [(logging.INFO, "info   "), (logging.WARNING, "warning"), (logging.CRITICAL, "error  ")]
)
def test_text_line_has_utc_time_and_level(level: int, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    try:
        line = TextFormatter().format(record("member-dead: node-3 is dead", level))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert line == f"2026-11-25T14:16:57.874Z {word} garlicfarm: member-dead: node-3 is dead"


def test_program_error_is_one_line_with_traceback() -> None:
    made = record("a fault of the program", logging.CRITICAL)
    made.exc_info = (ValueError, ValueError("one\ntwo"), None)
    found = json.loads(FORMATTER.format(made))
    assert (found["level"], found["node"], found["event"]) == ("error", "node-1", "message")
    assert found["fields"] == {"logger": "garlicfarm", "traceback": "ValueError: one\ntwo"}


@given(st.text(st.characters()))
@example("/srv/\udcff.key does not exist")
def test_foreign_text_is_one_ascii_line(text: str) -> None:
    """A byte of a file name that is not text becomes an escape, because JSON cannot represent it."""
    line = FORMATTER.format(record(text))
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["text"] == text.encode(errors="backslashreplace").decode()


@each_case(
    ("kind", "data", "warns"),
    [
        ("alarm-raised", {"alarm": "no-quorum", "text": "x"}, True),
        ("alarm-cleared", {"alarm": "no-quorum"}, False),
        ("verdict-changed", {"severity": "ok", "text": "x"}, False),
        ("verdict-changed", {"severity": "critical", "text": "x"}, True),
        ("publish-failed", {"reason": "x"}, True),
        ("publication-refused", {"reason": "x"}, True),
        ("leader-elected", {"term": 1}, False),
    ],
)
def test_events_that_need_action_are_warnings(kind: str, data: dict[str, str | int], *, warns: bool) -> None:
    assert is_warning(TraceEvent(1, 0, None, kind, "node-1", data)) is warns


def test_command_line_overrides_file_and_defaults(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('farm_key = "k"\n[gossip]\nbind = "127.0.0.1:7668"\n[log]\nformat = "json"\n')
    assert load_configuration(file).log == LogSettings(format=LogFormat.JSON, level=LogLevel.INFO)
    overrides = Overrides(log_format=LogFormat.TEXT, log_level=LogLevel.ERROR)
    assert load_configuration(file, overrides).log == LogSettings(format=LogFormat.TEXT, level=LogLevel.ERROR)
