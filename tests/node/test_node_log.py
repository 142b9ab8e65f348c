"""A record of a node's own log: one line, as text or as JSON, whatever words others put into it."""

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

FORMATTER = JsonFormatter("node-1")


def record(text: str, level: int = logging.INFO, **more: object) -> logging.LogRecord:
    """As a logger makes it, at a fixed moment."""
    made = logging.LogRecord("garlicfarm", level, "f", 1, "%s", (text,), None)
    made.created = 1_795_616_217.874
    vars(made).update(more)
    return made


def test_an_event_is_a_line_with_its_kind_words_and_facts() -> None:
    event = TraceEvent(7, 0, None, "leader-elected", "node-2", {"term": 3})
    line = FORMATTER.format(record(event_text(event), event=event))
    assert line == (
        '{"time":"2026-11-25T14:16:57.874Z","level":"info","node":"node-2","event":"leader-elected",'
        '"text":"node-2 leads in term 3","fields":{"term":3}}'
    )


@pytest.mark.parametrize(
    ("level", "word"), [(logging.INFO, "info   "), (logging.WARNING, "warning"), (logging.CRITICAL, "error  ")]
)
def test_a_line_of_text_has_the_same_moment_and_level_wherever_the_node_stands(
    level: int, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    try:
        line = TextFormatter().format(record("member-dead: node-3 is dead", level))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert line == f"2026-11-25T14:16:57.874Z {word} garlicfarm: member-dead: node-3 is dead"


def test_a_fault_of_the_program_is_one_line_with_its_traceback() -> None:
    made = record("a fault of the program", logging.CRITICAL)
    made.exc_info = (ValueError, ValueError("one\ntwo"), None)
    found = json.loads(FORMATTER.format(made))
    assert (found["level"], found["node"], found["event"]) == ("error", "node-1", "message")
    assert found["fields"] == {"logger": "garlicfarm", "traceback": "ValueError: one\ntwo"}


@given(st.text(st.characters()))
@example("/srv/\udcff.key does not exist")
def test_whatever_others_say_is_one_line_of_ascii_and_comes_back_as_it_was(text: str) -> None:
    """A byte of a file's name that is no text comes back spelled: JSON has no letter for it."""
    line = FORMATTER.format(record(text))
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["text"] == text.encode(errors="backslashreplace").decode()


@pytest.mark.parametrize(
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
def test_what_an_operator_may_have_to_act_on_is_a_warning(
    kind: str, data: dict[str, str | int], *, warns: bool
) -> None:
    assert is_warning(TraceEvent(1, 0, None, kind, "node-1", data)) is warns


def test_the_command_line_wins_over_the_file_and_each_has_a_default(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('farm_key = "k"\n[gossip]\nbind = "127.0.0.1:7668"\n[log]\nformat = "json"\n')
    assert load_configuration(file).log == LogSettings(format=LogFormat.JSON, level=LogLevel.INFO)
    told = Overrides(log_format=LogFormat.TEXT, log_level=LogLevel.ERROR)
    assert load_configuration(file, told).log == LogSettings(format=LogFormat.TEXT, level=LogLevel.ERROR)
