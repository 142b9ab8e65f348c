"""A group far larger than a member's directory, run as by `garlicfarm simulate gossip`.

The same scenario with ten thousand members is a command line (docs/reference/simulation.md), not a test: it takes
minutes.
"""

import errno
import os
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from bridge.cli.main import cli
from gossip.core.options import SwimOptions
from gossip.simulation.charts import picture, round_end, shares
from gossip.simulation.results import load_ratio, quantile, spread
from gossip.simulation.scenario import Play, Scenario, parts
from tests.effort import IS_SOAK
from tests.simulation.gossip_network import is_symmetrical

pytestmark = pytest.mark.search
RANDOM_SEED = 1
OPTIONS = SwimOptions.for_overlay() if IS_SOAK else replace(SwimOptions.for_overlay(), directory_limit=44)
LARGE = 240 if IS_SOAK else 50
"""More members than the limit of a directory."""


@cache
def played(members: int) -> Play:
    story = Scenario(
        members=members,
        capacity=8,
        periods=60,
        churn=0.2,
        random_seed=RANDOM_SEED,
        options=OPTIONS,
    )
    play = Play(story)
    play.run()
    return play


def test_large_overlay_after_churn_is_connected() -> None:
    play = played(LARGE)
    assert len(play.network.up) == LARGE
    assert play.parts == parts(play.network) == 1, f"random seed {RANDOM_SEED}"
    assert is_symmetrical(play.network)


def test_crashed_member_unlisted_within_30_periods() -> None:
    crashes = played(LARGE).crashes
    assert len(crashes) == LARGE // 5
    assert [(crash.victim, crash.unaware) for crash in crashes if crash.unaware] == [], f"random seed {RANDOM_SEED}"
    assert all(crash.unaware is not None for crash in crashes)
    times = [time for crash in crashes for time in (*crash.declared_by_peers, *crash.declared_by_directories)]
    assert max(times) <= 30
    peers = sum(len(crash.peers) for crash in crashes)
    assert sum(len(crash.declared_by_peers) for crash in crashes) > 0.8 * peers, "others crashed or dropped the link"


def test_running_members_are_not_accused() -> None:
    assert (played(LARGE).false_suspicions, played(LARGE).false_deaths) == (0, 0), f"random seed {RANDOM_SEED}"


def test_member_load_is_independent_of_group_size() -> None:
    messages, octets = load_ratio(played(LARGE), played(LARGE // 2), played(LARGE // 2).scenario.settled_by)
    assert messages <= 1.05, f"{messages:.3f}, random seed {RANDOM_SEED}"
    assert octets <= 1.05, f"{octets:.3f}, random seed {RANDOM_SEED}"


def test_directory_is_within_limit() -> None:
    assert max(len(node.core.membership) for node in played(LARGE).network.up) <= OPTIONS.directory_limit < LARGE


def test_picture_has_four_charts() -> None:
    drawn = ET.fromstring(picture(played(LARGE // 2)))  # noqa: S314 - our own output
    assert len(drawn.findall("{http://www.w3.org/2000/svg}g")) == 4
    lines = drawn.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 6
    assert all(len(line.attrib["points"].split()) > 1 for line in lines)


def test_quantiles_and_shares() -> None:
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([3, 1, 2], 1.0) == 3
    assert spread([]) == "none"
    assert shares([4.0, 2.0]) == [(0.0, 0.0), (2.0, 50.0), (4.0, 100.0)]


def test_command_prints_figures_and_writes_picture(tmp_path: Path) -> None:
    target = tmp_path / "gossip.svg"
    arguments = ["simulate", "gossip", "--members", "12", "--periods", "20", "--churn", "0.2", "--slow", "0.2"]
    more = ["--loss", "0.1", "--partition", "0.5", "--plot", str(target), "--compare", "8"]
    result = CliRunner().invoke(cli, [*arguments, *more])
    assert result.exit_code == 0, result.output
    for words in (
        "first declaration",
        "parts of the overlay",
        "load at rest",
        "from churn on, against 8",
        "processor time",
    ):
        assert words in result.output
    assert target.read_text().startswith("<svg")


def test_command_rejects_invalid_options(tmp_path: Path) -> None:
    refused = CliRunner().invoke(cli, ["simulate", "gossip", "--plot", str(tmp_path / "no" / "a.svg")])
    assert refused.exit_code == 1
    assert "for the chart does not exist" in refused.output
    assert CliRunner().invoke(cli, ["simulate", "gossip", "--churn", "1.5"]).exit_code == 2
    assert CliRunner().invoke(cli, ["simulate", "gossip", "--plot", str(tmp_path / "a.png")]).exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [["--members", "2"], ["--members", "3", "--churn", "0.99"], ["--members", "12", "--compare", "2"]],
)
def test_command_runs_smallest_groups(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, ["simulate", "gossip", "--periods", "40", *arguments])
    assert result.exit_code == 0, result.output
    assert "load at rest" in result.output


@pytest.mark.parametrize("target", ["no/such.svg", "link.svg"], ids=["missing-directory", "link-to-itself"])
def test_unwritable_picture_is_rejected_before_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    def run(*_: object) -> None:
        raise AssertionError("the run was started")

    monkeypatch.setattr(Play, "run", run)
    (tmp_path / "link.svg").symlink_to(tmp_path / target)
    refused = CliRunner().invoke(cli, ["simulate", "gossip", "--plot", str(tmp_path / "link.svg")])
    assert refused.exit_code == 1
    assert "cannot be written" in refused.output


def test_axes_end_at_round_numbers() -> None:
    ends = [round_end(highest) for highest in (0, 0.7, 1, 12.5, 59.3, 99.9, 100, 26_650)]
    assert ends == [1.0, 0.8, 1.0, 20.0, 60.0, 100.0, 100.0, 40_000.0]


def test_full_disk_names_chart(tmp_path: Path) -> None:
    """The error of a write does not name the file."""
    plot = tmp_path / "link.svg"
    plot.symlink_to("/dev/full")
    failed = CliRunner().invoke(cli, ["simulate", "gossip", "--members", "4", "--periods", "20", "--plot", str(plot)])
    assert failed.exit_code == 1
    assert f"garlicfarm: {plot}: No space left on device" in failed.stderr


def test_failed_write_keeps_earlier_chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plot, link = tmp_path / "chart.svg", tmp_path / "link.svg"
    command = ["simulate", "gossip", "--members", "4", "--periods", "20", "--plot", str(link)]
    link.symlink_to(plot)
    plot.write_text("earlier")
    plot.chmod(0o640)

    def full_disk(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, f"descriptor {descriptor}: no space")

    with monkeypatch.context() as patch:
        patch.setattr("consensus.storage.durable_file.os.fsync", full_disk)
        assert CliRunner().invoke(cli, command).exit_code == 1
    assert plot.read_text() == "earlier"
    assert CliRunner().invoke(cli, command).exit_code == 0
    assert plot.read_text().startswith("<svg")
    assert (link.is_symlink(), plot.stat().st_mode & 0o777) == (True, 0o640)


def test_chart_is_written_into_pipe() -> None:
    """A shell passes the path of a pipe for `>(COMMAND)`."""
    reader, writer = os.pipe()
    plot = f"/proc/self/fd/{writer}"
    command = ["simulate", "gossip", "--members", "4", "--periods", "20", "--plot", plot]
    with os.fdopen(reader, "rb") as pipe, os.fdopen(writer, "wb"):
        done = CliRunner().invoke(cli, command)
        assert done.exit_code == 0, done.output
        assert pipe.read1().startswith(b"<svg")
