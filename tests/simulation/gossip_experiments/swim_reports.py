"""The tables for the claims of SWIM's paper: first detection, load, a mass crash, and no false death."""

from collections.abc import Sequence
from functools import partial
from math import log2

from tests.simulation.gossip_experiments.detection import (
    EXPECTED_PERIODS,
    GROUP_SAMPLES,
    Detection,
    first_detections,
    quiet_load,
)
from tests.simulation.gossip_experiments.dissemination import (
    AT_HALF_LOSS,
    WITHOUT_LOSS,
    MassCrash,
    Steadiness,
    mass_crash,
    without_a_crash,
)
from tests.simulation.gossip_experiments.figures import Figure, correlation_of_neighbors, mean_of, table
from tests.simulation.gossip_experiments.setting import Setting

_STEADY = (100, 1_000, 0.05)


def detection(setting: Setting) -> str:
    """Measure the first detection in periods."""
    rows = []
    pooled: list[float] = []
    for size in setting.sizes:
        groups = _groups(setting, size)
        found = [period for group in groups for period in group.periods]
        rows.append(_detection_row(str(size), found, correlation_of_neighbors([group.periods for group in groups])))
        pooled += found
    rows.append(_detection_row("all", pooled, None))
    away = f"away from e/(e-1) = {EXPECTED_PERIODS:.3f}"
    return table(["N", "crashes", "mean periods to the first detection", away, "correlation"], rows)


def _groups(setting: Setting, size: int) -> list[Detection]:
    show = setting.progress(f"detection, {size} members")
    groups = []
    for number, first in enumerate(range(0, setting.samples, GROUP_SAMPLES)):
        samples = min(GROUP_SAMPLES, setting.samples - first)
        seed = setting.seed + number
        groups.append(
            setting.finished.once(
                Detection,
                {"run": "first_detections", "size": size, "samples": samples, "seed": seed},
                partial(first_detections, size, samples, seed),
            )
        )
        show((first + samples) / setting.samples)
    return groups


def _detection_row(size: str, periods: Sequence[float], correlation: float | None) -> list[str]:
    mean = mean_of(periods)
    away = Figure(*(bound / EXPECTED_PERIODS * 100 - 100 for bound in (mean.value, mean.low, mean.high)))
    shown = "" if correlation is None else f"{correlation:+.3f}"
    return [size, str(len(periods)), mean.text(), away.text("+.1f", " %"), shown]


def load(setting: Setting) -> str:
    """Measure the messages of an idle group."""
    loads = [quiet_load(size, 10, setting.seed) for size in setting.sizes]
    head = ["N", "probe messages per member and period", "all messages"]
    return table(head, [[str(each.size), f"{each.probe_messages:.3f}", f"{each.all_messages:.3f}"] for each in loads])


def crash(setting: Setting) -> str:
    """Measure a crash of a tenth of the group."""
    rows = []
    for loss in setting.losses:
        bound = WITHOUT_LOSS if loss == 0 else AT_HALF_LOSS
        for size in setting.sizes:
            show = setting.progress(f"mass crash, {size} members, {loss:.0%} loss")
            runs = []
            for seed in range(setting.seed, setting.seed + setting.repetitions):
                runs.append(
                    setting.finished.once(
                        MassCrash,
                        {"run": "mass_crash", "size": size, "loss": loss, "seed": seed},
                        partial(mass_crash, size, loss, seed),
                    )
                )
                show(len(runs) / setting.repetitions)
            rows.append(_crash_row(runs, bound))
    head = ["N", "loss", "runs", "crashed", "slowest known to all, periods", "in log2 N", "bound", "false deaths"]
    legend = "messages: per survivor and period from the crash until the last was known to all"
    return f"{table([*head, 'messages'], rows)}\n\n{legend}"


def _crash_row(runs: Sequence[MassCrash], bound: int) -> list[str]:
    size = runs[0].size
    slowest = None if any(run.slowest is None for run in runs) else max(run.slowest or 0 for run in runs)
    return [
        str(size),
        f"{runs[0].loss:.0%}",
        str(len(runs)),
        str(sum(len(run.known_everywhere) for run in runs)),
        f"{slowest:.1f}" if slowest is not None else _missed(runs),
        f"{slowest / log2(size):.2f}" if slowest is not None else "-",
        f"{bound} log2 N = {bound * log2(size):.0f}",
        str(sum(run.false_deaths for run in runs)),
        f"{sum(run.messages_per_member_and_period for run in runs) / len(runs):.1f}",
    ]


def _missed(runs: Sequence[MassCrash]) -> str:
    pairs = sum(len(run.known_everywhere) * (run.size - run.size // 10) for run in runs)
    return f"missed: {sum(run.missing for run in runs):,} of {pairs:,} pairs"


def steadiness(setting: Setting) -> str:
    """Measure a group without a crash."""
    size, periods, loss = _STEADY
    show = setting.progress(f"{size} members, {loss:.0%} loss, {periods:,} periods")
    runs = [
        setting.finished.once(
            Steadiness,
            {"run": "without_a_crash", "size": size, "periods": periods, "loss": loss, "seed": seed},
            partial(without_a_crash, size, periods, loss, seed, show),
        )
        for seed in range(setting.seed, setting.seed + setting.repetitions)
    ]
    head = ["seed", "members", "periods", "loss", "false suspicions", "held by members in all", "false deaths"]
    rows = [
        [str(setting.seed + number), *(str(each) for each in (run.size, run.periods)), f"{run.loss:.0%}"]
        + [str(each) for each in (run.accusations, run.suspicions, run.deaths)]
        for number, run in enumerate(runs)
    ]
    return table(head, rows)
