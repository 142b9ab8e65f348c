"""Labels of a generated farm: routers fail and degrade as labeled, and a seed always gives the same farm."""

import json
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from click.testing import CliRunner

from pipeline import load_model
from pipeline.cli.commands import pipeline
from pipeline.feedback.weighing import SERVERS_MAX
from pipeline.load_model import EPOCH_MS, LoadModel
from pipeline.planned_failures import APART_MS, DAY_MS, KINDS, Kind, Label, Signal

ROUTERS, DAYS, SEED = 4, 3.0, 9
PERIOD_MS = 120_000
"""Four times the period of a generated farm, for a quarter of its entries."""
PERIODS_OF_A_RESTART = 8
"""The longest restart in periods, including an overlapping restart of the leader."""
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Farm:
    """A farm, by its labels and the reported figures of each server in each period."""

    labels: tuple[Label, ...]
    figures: dict[int, dict[int, Figures]]

    def signal(self, label: Label, until_ms: int) -> float:
        """Return the median of the label's signal in the ten periods before `until_ms`."""
        last = period(until_ms)
        rows = (self.figures[label.server_id].get(each) for each in range(last - 10, last))
        return median(row[str(label.signal)] for row in rows if row is not None)


@pytest.fixture(scope="module")
def farm() -> Farm:
    model = LoadModel(ROUTERS, DAYS, SEED, KINDS)
    found: dict[int, dict[int, Figures]] = defaultdict(dict)
    log_time_ms = 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(load_model, "PERIOD_MS", PERIOD_MS)
        entries = [*model.entries()]
    for entry in entries:
        if entry.value is None or not entry.value.startswith((b'{"clock":{"time"', b'{"cluster":"farm","date"')):
            continue
        figures = json.loads(entry.value) if b"[[" not in entry.value else {}
        if "clock" in figures:
            log_time_ms = figures["clock"]["time"]
        elif "remoteDestinations" in figures:
            found[figures["id"]][period(log_time_ms)] = {
                "lag": figures["router"]["jobLag"],
                "tunnels": figures["router"]["participatingTunnels"],
                "round-trip": figures["remoteDestinations"][0]["fetchTime"],
            }
    return Farm(model.labels, found)


def period(at_ms: int) -> int:
    return (at_ms - EPOCH_MS) // PERIOD_MS


def test_routers_stop_reporting_only_when_labeled(farm: Farm) -> None:
    failures = [label for label in farm.labels if label.is_failure]
    assert {label.kind for label in failures} == {Kind.DEGRADATION, Kind.SUDDEN}
    labeled = {
        (label.server_id, each)
        for label in failures
        for each in range(period(label.fails_ms or 0), period(label.ends_ms) + 2)
    }
    for label in failures:
        reported = farm.figures[label.server_id]
        assert not [each for each in range(period(label.fails_ms or 0) + 1, period(label.ends_ms)) if each in reported]
    for server_id, reported in farm.figures.items():
        for one, following in pairwise(sorted(reported)):
            missing = [each for each in range(one + 1, following) if (server_id, each) not in labeled]
            assert len(missing) <= PERIODS_OF_A_RESTART


def test_degradation_signal_worsens_as_labeled(farm: Farm) -> None:
    worsened: dict[Signal, list[float]] = {signal: [] for signal in Signal}
    for label in farm.labels:
        if label.signal is not None and label.kind in {Kind.DEGRADATION, Kind.RELIEF}:
            end_ms = label.fails_ms or label.ends_ms
            worsened[label.signal].append(farm.signal(label, end_ms) / farm.signal(label, label.begins_ms))
    assert all(worsened.values()), "choose another seed"
    assert min(worsened[Signal.LAG]) > 2
    assert max(worsened[Signal.TUNNELS]) < 0.7
    assert min(worsened[Signal.ROUND_TRIP]) > 1.5


def test_labels_are_separate_and_as_frequent_as_configured() -> None:
    labels = LoadModel(50, 20.0, SEED, KINDS).labels
    assert 50 * 20 / 2.6 < len(labels) < 50 * 20 / 1.8
    for one, following in pairwise(labels):
        assert one.server_id != following.server_id or following.begins_ms - one.ends_ms >= APART_MS
    assert all(EPOCH_MS <= label.begins_ms < label.ends_ms < EPOCH_MS + 20 * DAY_MS for label in labels)
    shares = {kind: sum(label.kind is kind for label in labels) / len(labels) for kind in Kind}
    assert all(abs(shares[kind] - KINDS[kind] / 100) < 0.08 for kind in Kind)


def test_farm_without_kinds_is_unlabeled() -> None:
    assert LoadModel(50, 20.0, SEED, {}).labels == ()
    plain = [entry.value for entry in LoadModel(3, 0.05, SEED).entries()]
    assert LoadModel(3, 0.05, SEED).labels == ()
    assert not [each for each in plain if each is not None and b"remoteDestinations" in each]


def test_generate_writes_labels_reproducibly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_model, "PERIOD_MS", 2 * PERIOD_MS)

    def generated(name: str) -> str:
        labels = tmp_path / f"{name}.jsonl"
        arguments = ["generate", "--routers", "5", "--days", "0.6", "--output", str(tmp_path / name)]
        result = CliRunner().invoke(pipeline, [*arguments, "--labels", str(labels)])
        assert result.exit_code == 0, result.output
        assert f"labels in {labels}" in result.output
        return labels.read_text(encoding="utf-8")

    text = generated("one")
    assert generated("two") == text
    (first, *_) = (json.loads(line) for line in text.splitlines())
    assert set(first) == {"serverId", "kind", "signal", "beginsAtMs", "failsAtMs", "endsAtMs"}


def test_generate_names_unwritten_labels_file(tmp_path: Path) -> None:
    labels = tmp_path / "missing" / "labels"
    arguments = ["generate", "--routers", "1", "--days", "0.001", "--output", str(tmp_path / "farm")]
    result = CliRunner().invoke(pipeline, [*arguments, "--labels", str(labels)])
    assert result.exit_code == 1
    assert result.stderr == f"Error: {labels} was not written: No such file or directory; name another file\n"


@pytest.mark.parametrize(("routers", "is_warned"), [(SERVERS_MAX, False), (SERVERS_MAX + 1, True)])
def test_generate_warns_of_too_many_servers(routers: int, tmp_path: Path, *, is_warned: bool) -> None:
    arguments = ["generate", "--routers", str(routers), "--days", "0.001", "--output", str(tmp_path / "farm")]
    result = CliRunner().invoke(pipeline, arguments)
    assert (result.exit_code, "no farm can have" in result.stderr) == (0, is_warned)
