"""One trial: a farm under faults and load from a seed, its healing, and the checks.

Plan ──▶ run_trial ──▶ Outcome: violations, the story, figures

forming     all nodes start; the farm must be healthy within `FORM_S`
trouble     faults (`nemeses`) and clients (`workload`) at the same time; a supervisor starts ended processes again
healing     all faults end; within `HEAL_S` the verdicts of all members must be healthy for `STEADY_S`
remedies    with an operator, the commands of the remaining alarms are typed until no alarm is active
views       within `AGREE_S` the views of all members must be true
judgment    `checks` of the whole trial
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

import trio

from bridge.node.offline.recovering import RecoveryPlan
from bridge.node.raft.farm_content import objection_to_state
from tests.simulation.farm.checks import (
    Violation,
    Write,
    check_acknowledged,
    check_exclusions,
    check_linearizable,
    check_publications,
    objection_to_views,
    writes_in,
)
from tests.simulation.farm.disk import Disk, disk_calls
from tests.simulation.farm.host import EPOCH_S, current_host
from tests.simulation.farm.hostile import Parts
from tests.simulation.farm.nemeses import explains_end
from tests.simulation.farm.nemesis_driver import NemesisDriver, start_first
from tests.simulation.farm.observing import Observer
from tests.simulation.farm.oracle import Oracle
from tests.simulation.farm.plans import Plan
from tests.simulation.farm.remedies import Remedies
from tests.simulation.farm.replaying import replayed
from tests.simulation.farm.request_client import RequestClient
from tests.simulation.farm.settings import Profile, small_logs
from tests.simulation.farm.workload import Calls, Client, Kind
from tests.simulation.farm.world import World, simulate

FORM_S: Final = 60.0
HEAL_S: Final = 180.0
"""Longest time from the end of the last fault until all nodes are healthy."""
STEADY_S: Final = 10.0
"""A farm counts as healthy after it has been healthy for this time."""
LOOK_S: Final = 1.0
AGREE_S: Final = 30.0
"""Longest time from the healthy verdicts until the views agree."""
CLIENTS: Final = 3
EARLY_MS: Final = 25_000
"""Longest permitted lead of log time with reports every 10 s: a period, its allowance of 10 s, and 5 s.

docs/how-to/log-time.md and docs/reference/publishing-rules.md have the rule. The product's own limit is not used, so
its errors are found.
"""
LATE_PERIODS: Final = 6
"""Longest permitted delay of log time, in periods of reports."""
RESTART_S: Final = 3.0
"""Longest time until a supervisor starts an ended process again (RestartSec)."""


@dataclass(slots=True)
class Outcome:
    """The result of a trial."""

    plan: Plan
    violations: list[Violation] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    virtual_s: float = 0.0
    spent_s: float = 0.0
    healed_s: float | None = None
    figures: dict[str, int] = field(default_factory=dict)


def run_trial(plan: Plan) -> Outcome:
    began_s = time.process_time()
    outcome: Outcome = simulate(plan.seed, partial(_Trial(plan).run))
    outcome.spent_s = time.process_time() - began_s
    return outcome


class _Trial:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._outcome = Outcome(plan)
        self._nodes = Parts()

    async def run(self) -> Outcome:
        """Run all parts; a violation of one part does not prevent the later checks."""
        outcome = self._outcome

        def disk_of_caller() -> Disk | None:
            host = current_host.get()
            return host.disk if host is not None and isinstance(host.disk, Disk) else None

        with disk_calls(disk_of_caller):
            profile = _profile(self._plan)
            async with World.open(self._plan.seed, self._plan.nodes, profile, disk=Disk) as world:
                self._world = world
                self._observer = observer = Observer(lambda: world.time_s)
                world.on_taken.append(observer.taken)
                world.on_event.append(observer.event)
                self._calls = Calls(lambda: world.time_s)
                world.on_recovery.append(self._recovered)
                logs = small_logs() if self._plan.has_snapshots else nullcontext()
                with observer.observing(), self._nodes.collecting(), logs:
                    await self._parts(world)
                    outcome.virtual_s = world.time_s
                outcome.trace = world.trace
        return outcome

    def _recovered(self, plan: RecoveryPlan, *, ended_well: bool) -> None:
        self._observer.recovered(plan, ended_well=ended_well)
        self._calls.recovered()

    async def _parts(self, world: World) -> None:
        for host in world.hosts.values():
            assert isinstance(host.disk, Disk)
            host.disk.flush()
        driver = NemesisDriver(world, self._plan.faults, self._nodes)
        requests = RequestClient(world, self._observer.leaves, lambda: driver.changed_s)
        await start_first(world, self._plan.faults)
        if await self._healthy_within(FORM_S) is None:
            self._violate("formation", f"not healthy after {FORM_S:g} s: {self._verdicts()}")
            return
        oracle = Oracle(world, self._observer, driver)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._supervise, driver)
            nursery.start_soon(oracle.run)
            async with trio.open_nursery() as trouble:
                for each in self._clients(world):
                    trouble.start_soon(each.run)
                if self._plan.has_requests:
                    trouble.start_soon(requests.run)
                acting = trio.Event()
                trouble.start_soon(self._operate, driver, acting)
                await driver.run(self._plan.trouble_s)
                world.note(None, "healing")
                await driver.heal()
                with trio.move_on_after(HEAL_S):
                    await acting.wait()
                if not acting.is_set():
                    self._violate("completed action", f"not after {HEAL_S:g} s: {driver.operator.waits_for}")
                self._outcome.healed_s = await self._healthy_within(HEAL_S)
                if self._outcome.healed_s is None:
                    self._violate("healing", f"not healthy after {HEAL_S:g} s: {self._verdicts()}")
                else:
                    if self._plan.has_operator:
                        remedies = Remedies(world)
                        self._outcome.violations += await remedies.apply()
                        self._outcome.figures |= remedies.figures
                    await self._compare_views()
                trouble.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
        self._outcome.violations += [*oracle.violations, *requests.violations]
        self._outcome.figures |= requests.figures
        await self._judge(world)

    def _clients(self, world: World) -> list[Client]:
        names = list(world.hosts)
        return [
            Client(
                f"client{each}",
                Random(f"{self._plan.seed}/client{each}"),
                names,
                world.control,
                self._calls,
                self._observer.leaves,
                self._observer.committed,
            )
            for each in range(CLIENTS)
        ]

    async def _operate(self, driver: NemesisDriver, ended: trio.Event) -> None:
        await driver.operator.run(self._plan.trouble_s)
        self._outcome.figures |= driver.operator.completed
        self._outcome.violations += [Violation("completed action", each) for each in driver.operator.wrong]
        ended.set()

    async def _supervise(self, driver: NemesisDriver) -> None:
        """Start each process again that has ended without a fault of the plan."""
        while True:
            await trio.sleep(RESTART_S)
            for host in list(self._world.hosts.values()):
                if host.run is None and not driver.holds_down(host.name):
                    await self._world.start(host.name)

    async def _healthy_within(self, limit_s: float) -> float | None:
        """Return the time until all members are healthy and remain so for `STEADY_S`; None if this takes too long."""
        began_s = healthy_s = self._world.time_s
        while self._world.time_s < began_s + limit_s:
            await trio.sleep(LOOK_S)
            if not self._are_healthy():
                healthy_s = self._world.time_s
            elif self._world.time_s >= healthy_s + STEADY_S:
                return healthy_s - began_s
        return None

    def _are_healthy(self) -> bool:
        hosts = self._world.members.values()
        if any(each.run is None for each in hosts):
            return False
        verdicts = [self._observer.verdict_of(each) for each in hosts]
        return all(each is not None and each.kind == "healthy" for each in verdicts)

    def _verdicts(self) -> str:
        found = []
        for host in self._world.members.values():
            verdict = self._observer.verdict_of(host)
            state = "does not run" if host.run is None else "no verdict" if verdict is None else verdict.text
            found.append(f"{host.name}: {state}")
        return "; ".join(found)

    async def _compare_views(self) -> None:
        objection: str | None = ""
        with trio.move_on_after(AGREE_S):
            while objection is not None:
                await trio.sleep(LOOK_S)
                views = {}
                for name in self._world.members:
                    async with self._world.control(name) as client:
                        views[name] = await client.view()
                objection = objection_to_views(views, self._world.members)
        if objection is not None:
            self._violate("true view", f"not after {AGREE_S:g} s: {objection}")

    def _violate(self, check: str, text: str) -> None:
        self._outcome.violations.append(Violation(check, text))

    async def _judge(self, world: World) -> None:
        observer, calls, outcome = self._observer, self._calls.all, self._outcome
        writes = writes_in(observer.committed)
        outcome.violations += observer.violations
        outcome.violations += [
            Violation("running process", f"{name}: {failure}")
            for name, failure in world.failures
            if not explains_end(self._plan.faults, name, failure)
        ]
        outcome.violations += self._judge_calls(writes)
        masters = frozenset({world.master.destination.hash} if world.master else ())
        outcome.violations += check_publications(observer.publications, masters, frozenset(world.signers))
        outcome.violations += check_exclusions(observer.publications)
        outcome.violations += self._judge_log_time()
        await self._compare_states()
        acknowledged = [each for each in calls if each.is_acknowledged]
        outcome.figures |= {
            "calls": len(calls),
            "acknowledged": len(acknowledged),
            "writes": sum(each.kind is Kind.WRITE for each in acknowledged),
            "entries": len(observer.committed),
            "publications": len(observer.publications),
            **{f"snapshots {done}": number for done, number in sorted(observer.snapshots.items())},
        }

    def _judge_calls(self, writes: Mapping[str, Write]) -> Iterator[Violation]:
        """Judge the calls before and after a recovery: the new farm lacks the last entries if its survivor did."""
        observer, calls, moment = self._observer, self._calls.all, self._calls.recovered_at
        earlier = [each for each in calls if each.called < moment]
        judged = [each for each in earlier if each.answered is None or each.answered < moment]
        before = writes_in(observer.before)
        yield from check_acknowledged(judged, before)
        yield from check_linearizable(judged, before)
        kept = [each for each in earlier if each.index is not None and each.index <= observer.kept]
        later = [each for each in calls if each.called >= moment]
        yield from check_acknowledged([*kept, *later], writes)
        yield from check_linearizable([*(each for each in earlier if each.kind is Kind.WRITE), *later], writes)

    def _judge_log_time(self) -> Iterator[Violation]:
        """Find log time that is too far ahead to become right by waiting, or, in a healthy farm, too late."""
        late_ms = LATE_PERIODS * self._world.profile.reporting_period_ms
        for name in self._world.members:
            state = self._observer.states.get(name)
            if state is None:
                if self._outcome.healed_s is not None:
                    yield Violation("true log time", f"the state of {name} is unknown")
                continue
            ahead_ms = state.state.log_time_ms - 1000 * (EPOCH_S + self._world.time_s)
            if ahead_ms > EARLY_MS or (self._outcome.healed_s is not None and ahead_ms < -late_ms):
                yield Violation("true log time", f"log time at {name} is {ahead_ms / 1000:.0f} s ahead of the time")

    async def _compare_states(self) -> None:
        """Compare the state machines of all nodes at the same index."""
        names = list(self._world.members)
        for _ in range(100):
            digests = {each: self._observer.digest(each) for each in names if self._world.hosts[each].run is not None}
            if len({index for index, _ in digests.values()}) <= 1:
                break
            await trio.sleep(0.05)
        else:
            self._violate("equal state machines", f"no common index: {digests}")
            return
        if len(set(digests.values())) > 1:
            self._violate("equal state machines", str(digests))
        elif digests and self._observer.founding is not None:
            last, digest = next(iter(digests.values()))
            if last > 0:  # a node that has lost its disk has not applied any entry
                await self._replay(last, digest)

    async def _replay(self, last: int, digest: str) -> None:
        """Compare the state of the nodes with replays of the log."""
        observer = self._observer
        assert observer.founding is not None
        for way, found in (await replayed(observer.founding, observer.committed, last, observer.first)).items():
            if found != digest:
                self._violate("equal state machines", f"{way} of {last} entries differs from the state of the nodes")
        applied = next(iter(observer.states.values()))
        if (objection := objection_to_state(applied.state, applied._farm.tuning.period_ms)) is not None:
            self._violate("bounded numbers", objection)


def _profile(plan: Plan) -> Profile:
    """Return the choices of the farm: with an operator, new nodes wait for approval, and addresses may change."""
    return Profile(
        has_routers=plan.has_routers,
        admit="ask" if plan.has_operator else "all",
        fixed_address=not plan.has_operator,
    )
