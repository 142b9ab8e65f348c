"""The reason of the choice of a publisher, as one sentence for each candidate."""

import pytest

from bridge.api.building.log_part import part_views
from bridge.api.view import ScorePartView
from bridge.core.publishing.candidates import Candidate, choose
from bridge.core.publishing.choice_reasons import ChoiceTexts, choice_texts_alone, no_publisher_text, reason_of_change
from bridge.core.publishing.score import Inability
from bridge.core.state.farm_state import Choice
from tests.spec.farm_stories import TUNING, leaf, report


def texts(choice: Choice, *candidates: Candidate) -> list[str]:
    able = [each for each in candidates if each.inability is None]
    return [ChoiceTexts(choice, able, TUNING, "node-{}".format).of(each) for each in candidates]


def candidate(server_id: int, score: int, **changes: object) -> Candidate:
    return Candidate(server_id, preferred=changes.pop("preferred", False) is True, score=score, **changes)  # type: ignore[arg-type]


def test_best_publisher_has_best_score() -> None:
    assert texts(Choice(1), candidate(1, 950), candidate(2, 900)) == [
        "its score 950 is the best of 2",
        "not chosen: its score 900 is below the 950 of node-1",
    ]


def test_reason_names_sole_able_server() -> None:
    assert texts(Choice(1), candidate(1, 632), candidate(2, 0, inability=Inability.UNATTACHED)) == [
        "its score is 632, and no other server can publish",
        "cannot publish: it does not have a router",
    ]


def test_publisher_within_margin_is_kept() -> None:
    assert texts(
        Choice(1), candidate(1, 632), candidate(2, 634, standby=True), candidate(3, 632), candidate(4, 633)
    ) == [
        "its score 632 is kept: the best of 4 is 634, of node-2; a change needs a lead of 100 points",
        "standby with a ready session: its score 634 is above the 632 of node-1; a change needs a lead of 100 points",
        "not chosen: its score 632 is below the 634 of node-2",
        "not chosen: its score 633 is below the 634 of node-2",
    ]


def test_equal_score_does_not_change_publisher() -> None:
    assert texts(Choice(2), candidate(1, 632), candidate(2, 632))[0] == (
        "not chosen: its score 632 equals the 632 of node-2; a change needs a lead of 100 points"
    )


@pytest.mark.parametrize(("beaten", "missing"), [(0, "3 more clock entries"), (2, "1 more clock entry")])
def test_beaten_publisher_has_remaining_clock_entries(beaten: int, missing: str) -> None:
    change = f"the publisher changes after {missing} with this lead"
    assert texts(Choice(1, beaten), candidate(1, 632), candidate(2, 800)) == [
        f"its score 632 is kept: the best of 2 is 800, of node-2; {change}",
        f"not chosen: its score 800 is above the 632 of node-1; {change}",
    ]


def test_clock_entries_of_sentence_match_choice() -> None:
    candidates, choice = [candidate(1, 632), candidate(2, 800)], Choice(1)
    for missing in (3, 2, 1):
        assert f"after {missing} more" in texts(choice, *candidates)[0]
        choice = choose(choice, candidates, TUNING, at_clock=True)
    assert choice == Choice(2)


def test_preferred_publisher_precedes_better_score() -> None:
    assert texts(Choice(1), candidate(1, 500, preferred=True), candidate(2, 900)) == [
        'it has publish = "on", and its score is 500',
        'not chosen: node-1 has publish = "on"',
    ]
    two = texts(Choice(1), candidate(1, 500, preferred=True), candidate(2, 900), candidate(3, 550, preferred=True))
    assert two[0] == "its score 500 is kept: the best of 2 is 550, of node-3; a change needs a lead of 100 points"


def test_candidates_without_choice_have_reasons() -> None:
    assert texts(Choice(), candidate(1, 500), candidate(2, 500, inability=Inability.NO_KEY)) == [
        "it can publish; the next entry of the log chooses the publisher",
        "cannot publish: it does not have a valid signing key",
    ]
    off = candidate(1, 500, inability=Inability.OFF)
    assert texts(Choice(), off) == ["cannot publish: publishing is switched off"]
    assert no_publisher_text([off]) == "no server can publish: publishing is switched off"
    assert no_publisher_text([candidate(2, 1, inability=Inability.NO_KEY)]) == (
        "no server can publish: it does not have a valid signing key"
    )


@pytest.mark.parametrize(
    ("acting", "last", "expected"),
    [
        (1, 1, ["without a quorum: it published last", "not chosen: without a quorum, node-1 publishes"]),
        (
            2,
            1,
            [
                "not chosen: without a quorum, node-2 publishes",
                "without a quorum: the first reachable server that can publish",
            ],
        ),
    ],
)
def test_choice_without_quorum_has_its_reason(acting: int, last: int, expected: list[str]) -> None:
    candidates = [candidate(1, 1), candidate(2, 2), candidate(3, 3, inability=Inability.STALE)]
    assert list(choice_texts_alone(acting, last, candidates, "node-{}".format).values()) == [
        *expected,
        "cannot publish: its last report is stale",
    ]


@pytest.mark.parametrize(
    ("chosen", "previous", "candidates", "reason"),
    [
        (
            2,
            1,
            [candidate(1, 9, inability=Inability.STALE), candidate(2, 8)],
            "node-1 cannot publish: its last report is stale",
        ),
        (
            None,
            1,
            [candidate(1, 9, inability=Inability.NO_KEY)],
            "node-1 cannot publish: it does not have a valid signing key",
        ),
        (2, 1, [candidate(2, 8)], "node-1 no longer reports for this master"),
        (2, 1, [candidate(1, 632), candidate(2, 800)], "its score 800 is above the 632 of node-1"),
        (2, 1, [candidate(1, 632), candidate(2, 8, preferred=True)], 'it has publish = "on"'),
        (2, None, [candidate(1, 632, inability=Inability.STALE), candidate(2, 8)], "no other server can publish"),
        (2, None, [candidate(1, 632), candidate(2, 800)], None),
        (2, 1, [candidate(1, 632), candidate(2, 632)], None),
    ],
)
def test_changed_publisher_has_true_reason(
    chosen: int | None, previous: int | None, candidates: list[Candidate], reason: str | None
) -> None:
    assert reason_of_change(chosen, previous, candidates, "node-{}".format) == reason


def test_score_parts_show_reported_values() -> None:
    changes = {"job_lag_ms": 12, "uptime_ms": 5 * 3_600_000, "current_bandwidth_bytes_per_s": 20_000}
    found = report(1, destinations=(leaf("a"), leaf("b", healthy=False)), cpu_percent=None, **changes)
    assert part_views(found) == (
        ScorePartView("job lag", "12ms", 297, 300),
        ScorePartView("uptime", "5h00m", 200, 200),
        ScorePartView("leaves", "1 of 2 healthy", 100, 200),
        ScorePartView("bandwidth", "20 of 1000 kB/s", 147, 150),
        ScorePartView("processor", "unknown", 50, 100),
        ScorePartView("memory", "0 %", 50, 50),
    )
