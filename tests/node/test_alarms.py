"""The alarm board: displayed alarms, and alarms that become events."""

import pytest

from bridge.api.alarms import SLOW_MAJORITY
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog


def raised(first: str, then: str) -> tuple[int, str]:
    """Return the number of events that two texts of one alarm produce, and the displayed text."""
    trace = EventLog("node", lambda: 0)
    alarms = Alarms(trace)
    for text in (first, then):
        alarms.set(SLOW_MAJORITY, text)
    return len(trace.read(1).events), alarms.active()[0].text


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("a majority takes 213 ms to store an entry", "a majority takes 1405 ms to store an entry"),
        ("the clock is 5.1 s ahead", "the clock is -17.25 s ahead"),
        ("the disk is 91% full", "the disk is 92% full"),
        ("it ends in 6 d 3 h", "it ends in 5 d 23 h"),
    ],
)
def test_alarm_with_another_figure_replaces_text_without_event(first: str, then: str) -> None:
    assert raised(first, then) == (1, then)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("node-2 is down", "node-3 is down"),
        ("server 2 is down", "server 3 is down"),
        ("10.0.0.3 has another key", "10.0.0.4 has another key"),
        ("box-5 s", "box-6 s"),
    ],
)
def test_alarm_about_another_subject_is_an_event(first: str, then: str) -> None:
    assert raised(first, then) == (2, then)
