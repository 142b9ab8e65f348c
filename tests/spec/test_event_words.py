"""Events in words: names and times of day in place of numbers, and of several nodes each fact once."""

import ast
from pathlib import Path

import pytest

from bridge.api.event_words import (
    FACTS_MAX,
    OF_THE_FARM,
    SAME_FACT_MS,
    StoryTeller,
    event_sentence,
    event_text,
    story_line,
)
from bridge.api.trace import Scalar, TraceEvent

MASTER = "hakketfo3r2mqy5vdo4n6t5gqzc3b2e7xkfp4nq6lw2a5s7d3yue.b32.i2p"
ROOT = Path(__file__).parents[2]


def event(kind: str, node: str = "node-1", time_ms: int = 0, **data: Scalar) -> TraceEvent:
    """As a node records it."""
    return TraceEvent(1, time_ms, None, kind, node, data)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        (
            event("publisher-chosen", server=2, name="node-2", previous=3, previousName="node-3", master=MASTER),
            "node-2 is to publish hakketfo3r2m….b32.i2p, after node-3",
        ),
        (
            event("publisher-chosen", server=None, previous=3, previousName="node-3", master=MASTER),
            "no server can publish hakketfo3r2m….b32.i2p, after node-3",
        ),
        (
            event("publication-accepted", server=2, name="node-2", second=1_795_352_222),
            "node-2 may publish the structure of 12:57:02",
        ),
        (
            event("publication-refused", server=1, name="node-1", reason="node-1 is not the publisher; no server is"),
            "that of node-1: node-1 is not the publisher; no server is",
        ),
        (
            event(
                "publication-refused",
                server=1,
                reason="second 1795352222 is not after 1795352333, which was accepted before",
            ),
            "that of server 1: second 12:57:02 is not after 12:58:53, which was accepted before",
        ),
        (
            event("exclusion-changed", leaf=MASTER.removesuffix(".b32.i2p"), excluded=True),
            "leaf hakketfo3r2m….b32.i2p is excluded",
        ),
        (
            event("cost-factor-changed", leaf=MASTER.removesuffix(".b32.i2p"), factor=1.5),
            "the cost of leaf hakketfo3r2m….b32.i2p is multiplied by 1.5",
        ),
        (event("node-started", pid=71, generation=1), "with pid 71"),
        (event("node-started", pid=72, generation=2), "with pid 72, start number 2"),
        (event("published", second=1_795_352_222, entries=3), "the structure of 12:57:02, with 3 entries"),
        (event("leader-followed", term=4, leader=2, leaderName="node-2"), "node-2 leads in term 4"),
        (
            event("configuration-changed", voters="1 2", learners="", voterNames="oslo lima", learnerNames=""),
            "voters are oslo, lima",
        ),
        (event("server-forgotten", server=7), "server 7 has been silent for long"),
        (event("something-new", server=2, name="node-2", second=1_795_352_222), "name=node-2 second=12:57:02"),
    ],
)
def test_people_get_names_and_times_of_day(told: TraceEvent, sentence: str) -> None:
    assert event_sentence(told) == sentence


def test_the_facts_of_another_version_are_told_as_they_are() -> None:
    assert event_text(event("leader-elected", epoch=4)) == "leader-elected: epoch=4"


def test_an_election_is_one_fact_whether_the_leader_tells_it_or_a_follower() -> None:
    story = StoryTeller()
    told = [
        event("leader-followed", "node-3", 10, term=4, leader=1, leaderName="node-1"),
        event("leader-elected", "node-1", 0, term=4),
        event("leader-followed", "node-2", 20, term=4, leader=1, leaderName="node-1"),
    ]
    lines = [story_line(each) for each in told if story.is_news(event_sentence(each), each.time_ms)]
    assert lines == ["leader-elected: node-1 leads in term 4"]


def test_what_comes_again_later_is_told_again() -> None:
    story = StoryTeller()
    times_ms = [0, 5, SAME_FACT_MS - 1, SAME_FACT_MS + 1, 3 * SAME_FACT_MS]
    assert [story.is_news("node-2 is dead", each) for each in times_ms] == [True, False, False, True, True]


def test_what_was_told_is_remembered_in_bounded_memory() -> None:
    story = StoryTeller()
    for number in range(3 * FACTS_MAX):
        assert story.is_news(f"fact {number}", number)
    assert len(story._told) == FACTS_MAX


def test_a_line_of_one_node_names_it_and_one_of_the_farm_does_not() -> None:
    assert story_line(event("published", "node-2", second=60, entries=1)).startswith("node-2 published: ")
    assert story_line(event("member-dead", "node-2", member="node-3", id="ff")) == "member-dead: node-3 is dead"


def test_every_kind_that_is_about_the_farm_is_one_that_a_node_records() -> None:
    """A kind that is renamed must be renamed here as well."""
    words = {
        node.value
        for path in (ROOT / "bridge" / "node").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    made = {f"member-{status}" for status in ("alive", "suspect", "dead", "left")}
    assert OF_THE_FARM - made <= words
