"""Rolling restarts of five servers under load: acknowledged entries survive, and the farm stays published."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from cryptography.exceptions import InvalidSignature

from bridge.core.publishing.publication import JITTER_PERCENT, Pace
from bridge.node.local.farm_files import REPORTING_PERIOD_MS
from tests.end_to_end.farm import START_BOUND_S, Farm, local_farm, seeded
from tests.end_to_end.layout import Read, read_meta_lease_set
from tests.end_to_end.submitter import Submitter
from tests.processes import END_S

SERVERS = 5
PACE = Pace.of_period(REPORTING_PERIOD_MS)
REFRESH_S = PACE.refresh_ms * (100 + JITTER_PERCENT) / 100_000
AGE_BOUND_S = REFRESH_S + 3 * REPORTING_PERIOD_MS / 1000
LOOK_S = 0.2


@pytest.fixture
def farm_of_five(tmp_path: Path) -> Iterator[Farm]:
    with local_farm(tmp_path, SERVERS) as farm:
        farm.start_all()
        farm.wait_settled()
        farm.wait_until(lambda: [node for node in farm.nodes if node.structures()], START_BOUND_S, "a node publishes")
        yield farm


class Watch:
    """A thread that checks the newest published structure while its block runs."""

    def __init__(self, farm: Farm) -> None:
        self._farm = farm
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")
        self._last: Read | None = None
        self.faults: list[str] = []
        self.looks = 0
        self.handed_over = 0
        self.oldest_s = 0.0
        self.nearest_end_s = float("inf")

    def __enter__(self) -> Self:
        self._look()
        assert self._last is not None, "the farm is not published yet"
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        for node in self._farm.nodes:
            for path in node.structures():
                self._consider(path)
        now_s = time.time()
        if self._last is None:
            return
        self.looks += 1
        age_s, left_s = now_s - self._last.published_s, self._last.ends_s - now_s
        self.oldest_s, self.nearest_end_s = max(self.oldest_s, age_s), min(self.nearest_end_s, left_s)
        if age_s > AGE_BOUND_S or left_s <= 0:
            self.faults.append(f"a structure {age_s:.1f} s old, which ends in {left_s:.1f} s")

    def _consider(self, path: Path) -> None:
        with suppress(FileNotFoundError):  # removed since the listing
            try:
                found = read_meta_lease_set(path)
            except (InvalidSignature, AssertionError) as error:
                self.faults.append(f"{path} cannot be verified: {error!r}")
                return
            if self._last is None or found.published_s > self._last.published_s:
                self._last = found
                self.handed_over += 1


def restart_all(farm: Farm, rounds: int, at_least_s: float) -> None:
    """Restart all servers in a random order, each after the farm has settled again, for some rounds."""
    random = seeded("rolling restart")
    began = time.monotonic()
    while rounds > 0 or time.monotonic() - began < at_least_s:
        rounds -= 1
        for node in random.sample(farm.nodes, SERVERS):
            assert node.stop() == 0
            node.start()
            farm.wait_settled()


def check_rolling_restart(farm: Farm, rounds: int, at_least_s: float = 0.0) -> None:
    """Restart servers under load and check entries and publications."""
    began = time.monotonic()
    with Watch(farm) as watch, Submitter(farm, farm.nodes, "rolling") as submitter:
        submitter.wait_for(5, START_BOUND_S)
        restart_all(farm, rounds, at_least_s)
        submitter.wait_for(5, START_BOUND_S)
    print(  # noqa: T201 - shown with -s
        f"{time.monotonic() - began:.0f} s, {len(submitter.acknowledged)} acknowledged, {watch.handed_over} structures"
        f" handed over, the oldest {watch.oldest_s:.1f} s old (bound {AGE_BOUND_S:.0f}),"
        f" at least {watch.nearest_end_s:.0f} s from its end, {watch.looks} looks"
    )
    assert not submitter.errors
    assert not watch.faults, watch.faults[:5]
    assert watch.handed_over > 1
    for node in farm.nodes:
        farm.wait_log(node, submitter.acknowledged)


@pytest.mark.soak
def test_restart_of_each_server_keeps_acknowledged_entries(farm_of_five: Farm) -> None:
    check_rolling_restart(farm_of_five, rounds=1)


@pytest.mark.soak
def test_restarts_beyond_refresh_interval_keep_farm_published(farm_of_five: Farm) -> None:
    """The run is longer than the refresh interval, so an outdated structure would be found."""
    check_rolling_restart(farm_of_five, rounds=1, at_least_s=AGE_BOUND_S + 60)
