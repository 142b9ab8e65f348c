"""The truth about a farm, compared with the verdicts of its nodes.

    verdict healthy     wrong if a voter has been down or cut off from the node for `LATE_S`

Verdicts have documented delays (docs/reference/verdicts.md): gossip marks a process dead within seconds, a report is
missed after periods, clocks are compared by reports. `LATE_S` is above their sum. Only a truth that has been constant
for that time counts, so a verdict may be wrong for that long and no longer.
"""

from typing import Final

import trio

from tests.simulation.farm.checks import Violation
from tests.simulation.farm.nemesis_driver import NemesisDriver
from tests.simulation.farm.observing import Observer
from tests.simulation.farm.world import World

LATE_S: Final = 60.0
LOOK_S: Final = 1.0


class Oracle:
    """Comparison of verdicts with the truth, each second."""

    def __init__(self, world: World, observer: Observer, driver: NemesisDriver) -> None:
        self._world = world
        self._observer = observer
        self._driver = driver
        self._down_since: dict[tuple[str, str], float] = {}
        """Since when a machine has not been able to reach another, or that one has not run."""
        self._found: set[tuple[str, str]] = set()
        self.violations: list[Violation] = []

    async def run(self) -> None:
        """Compare until cancelled."""
        while True:
            self._look()
            await trio.sleep(LOOK_S)

    def _is_lost(self, source: str, target: str) -> bool:
        host = self._world.hosts[target]
        blocked = self._world.network.blocked
        return host.run is None or host.is_paused or ((source, target) in blocked and (target, source) in blocked)

    def _look(self) -> None:
        now_s = self._world.time_s
        for source in self._world.hosts.values():
            for target in self._world.hosts.values():
                pair = (source.name, target.name)
                watches = source.run is not None and not source.is_paused and source is not target
                if watches and self._is_lost(*pair):
                    since_s = self._down_since.setdefault(pair, now_s)
                    self._judge(*pair, now_s - since_s)
                else:
                    self._down_since.pop(pair, None)

    def _judge(self, source: str, target: str, lost_s: float) -> None:
        verdict = self._observer.verdict_of(self._world.hosts[source])
        if (
            lost_s > LATE_S
            and verdict is not None
            and verdict.kind == "healthy"
            and (source, target) not in self._found
        ):
            self._found.add((source, target))
            text = f"{source} reports healthy, and {target} has been lost to it for {lost_s:.0f} s"
            self.violations.append(Violation("true verdict", text))
