"""The live view: every fact is on the screen as a word, and the screen is never larger than the terminal."""

import dataclasses
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console, Group

from bridge.api.printable import printable
from bridge.api.view import EventView, FarmView, LocalFarmView, WeightsView, best_view
from bridge.tui.history import History
from bridge.tui.layout import Want, share
from bridge.tui.panes import Seen, draw
from bridge.tui.state import ViewState
from bridge.tui.words import clock_text, duration, milliseconds_text, short_address
from tests.operator_views import farm_view, forming_view, local_farm


def drawn(picture: Group, width: int, height: int, *, color: bool = False) -> str:
    out = StringIO()
    console = Console(
        file=out,
        width=width,
        height=height,
        force_terminal=color,
        color_system="256" if color else None,
        legacy_windows=False,
    )
    console.print(picture, end="")
    return out.getvalue()


def render(view: FarmView, width: int, height: int, *, color: bool = True) -> Group:
    """What one node sees, before anything was chosen."""
    history = History()
    history.take(view)
    return draw(ViewState(), Seen(view, history), width, height, color=color)


def render_local_farm(farm: LocalFarmView, width: int, height: int, *, color: bool = True) -> Group:
    """A whole local farm."""
    return draw(ViewState(), Seen(best_view(farm), History(), local=farm), width, height, color=color)


def render_message(text: str, width: int, height: int, *, color: bool = True) -> Group:
    """Why there is no view."""
    return draw(ViewState(), Seen(None, History(), reason=text), width, height, color=color)


def screen(view: FarmView, width: int = 80, height: int = 24) -> str:
    return drawn(render(view, width, height, color=False), width, height)


def test_the_view_at_80_by_24_shows_every_required_fact() -> None:
    text = screen(farm_view())
    for fact in (
        "node-1*", "alive", "suspect", "dead", "1.4", "0.62ms",  # members: status, incarnation, round trip
        "leader term 3", "commit 217/218", "never",  # Raft: role, term, commit, a follower that never answered
        "node-2 publishes", "expires in 14m40s", "leaf1abcdefg", "unhealthy", "COST",  # what is published
        "node-4 is suspected, confirmation 11", "signing-key-ends", "DEMO",  # events, alarms, demonstration
    ):  # fmt: skip
        assert fact in text, fact


def test_a_node_that_waits_for_others_says_so() -> None:
    text = screen(forming_view())
    assert "not founded: discovering, 5 routers make this farm" in text
    assert "nothing is published yet" in text


def test_a_farm_without_leader_says_so() -> None:
    view = farm_view(2)
    assert "no leader" in screen(replace(view, raft=replace(view.raft, leader_id=None)))


def test_the_whole_local_farm_shows_each_process_and_how_it_ended() -> None:
    text = drawn(render_local_farm(local_farm(3), 80, 24, color=False), 80, 24)
    for fact in ("2/3 routers run", "4001", "follower", "stopped", "killed by signal 9; the others say", "node-2 publ"):
        assert fact in text, fact


def test_the_local_farms_footer_is_the_command_that_starts_the_killed_router_again() -> None:
    farm = dataclasses.replace(local_farm(3), program=".venv/bin/garlicfarm")
    lines = drawn(render_local_farm(farm, 80, 24, color=False), 80, 24).splitlines()
    assert lines[-2].endswith("after kill -9: .venv/bin/garlicfarm run --config farm-state/node-3/node.toml")


def test_a_local_farm_of_which_no_answer_expected_yet_is_drawn() -> None:
    assert "starting" in drawn(render_local_farm(LocalFarmView(0, "farm-state", ()), 80, 24, color=False), 80, 24)


@pytest.mark.parametrize("color", [True, False])
@given(width=st.integers(20, 200), height=st.integers(5, 60), servers=st.integers(1, 9))
def test_no_picture_is_larger_than_the_terminal(*, color: bool, width: int, height: int, servers: int) -> None:
    view = farm_view(servers=max(servers, 2))
    for picture in (
        render(view, width, height, color=color),
        render_local_farm(local_farm(max(servers, 2)), width, height, color=color),
        render_message("no node runs there " * 9, width, height, color=color),
    ):
        lines = drawn(picture, width, height).split("\n")
        assert len(lines) == height
        assert max(len(line.rstrip()) for line in lines) <= width


def test_without_colour_no_colour_is_sent_and_no_word_is_missing() -> None:
    coloured = drawn(render(farm_view(), 80, 24, color=True), 80, 24, color=True)
    plain = drawn(render(farm_view(), 80, 24, color=False), 80, 24, color=True)
    assert "\x1b[32m" in coloured
    assert not any(f"\x1b[{code}" in plain for code in ("3", "9"))
    assert drawn(render(farm_view(), 80, 24, color=True), 80, 24) == screen(farm_view())


def test_what_does_not_fit_is_counted() -> None:
    assert "… 3 more" in screen(farm_view(), 80, 14)


@given(st.text())
def test_no_text_of_others_reaches_the_terminal_as_a_command(text: str) -> None:
    assert all(letter.isprintable() for letter in printable(text))
    view = replace(farm_view(), events=(EventView(0, "x", text),), alarms=())
    assert not any(ord(letter) < 32 and letter != "\n" for letter in screen(view))


@given(st.integers(0, 80), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), max_size=6))
def test_sections_never_get_more_than_there_is_nor_more_than_they_want(
    height: int, pairs: list[tuple[int, int]]
) -> None:
    wants = [Want(min(pair), max(pair)) for pair in pairs]
    shares = share(height, wants)
    assert sum(shares) <= height
    assert all(given <= want.most for given, want in zip(shares, wants, strict=True))


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1000, "1s"),
        (61_000, "1m01s"),
        (3_660_000, "1h01m"),
        (90_000_000, "1d01h"),
        (-5000, "-5s"),
    ],
)
def test_a_length_of_time_is_told_in_its_two_leading_units(milliseconds: int, text: str) -> None:
    assert duration(milliseconds) == text


def test_an_impossible_moment_is_a_number() -> None:
    assert clock_text(0) == "00:00:00"
    assert clock_text(-1) == "-1"
    assert clock_text(10**18) == str(10**18)


def test_a_short_address_keeps_its_head() -> None:
    assert short_address("a" * 52 + ".b32.i2p") == "aaaaaaaaaaaa….b32.i2p"
    assert short_address("short") == "short"


def test_a_round_trip_time_is_shown_with_no_digit_more_than_was_measured() -> None:
    shown = [milliseconds_text(value) for value in (None, 0.0, 1.0, 1.24, 12.6)]
    assert shown == ["-", "<1ms", "1ms", "1.24ms", "13ms"]


def test_what_operators_and_the_pipeline_add_is_shown_with_its_age() -> None:
    text = screen(farm_view(), 200, 60)
    for fact in ("excluded leaf6", "x 1.5 by an operator", "x 1.21 by the pipeline 1m01s ago"):
        assert fact in text, fact
    assert "WEIGHTS" not in screen(replace(farm_view(), weights=WeightsView()), 200, 60)
