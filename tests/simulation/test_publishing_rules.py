"""All rules of publishing together, second by second, over hours of a farm with faults and changes.

Three servers with eight leaves each report and crash, leaves become unhealthy, loads change, operators turn publishing
off. Each server plans and signs like `BackgroundTasks`. Each accepted publication is signed and then checked like in a
Java router, together with the previous one. Time is simulated; a failure names its seed.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest

from bridge.core.farm.state_machine import PublicationAccepted
from bridge.core.log.records import Clock, Publication, PublishConfig, Record, Report
from bridge.core.publishing.entries import LEAVES_MAX
from bridge.core.publishing.lease_set import content_hash
from bridge.core.publishing.publication import (
    ENTRY_REMAINING_S,
    JITTER_PERCENT,
    Pace,
    PlannedPublication,
    plan_publication,
)
from bridge.core.state.farm_state import FarmTuning, Leaf
from bridge.core.state.log_time import LogTime
from bridge.wire.i2p.destination_keys import SigningKey, new_master_key
from bridge.wire.i2p.meta_lease_set import MetaLeaseSet, check_acceptable_to_java_router, decode
from bridge.wire.i2p.structures import destination_from_base64
from tests.authored import AuthoredFarm
from tests.destinations import new_demo_leaf
from tests.spec.farm_stories import leaf, report

NOW_S = 1_767_225_600
SERVERS = (1, 2, 3)
PERIOD_S = 30
PACE = Pace()
LONGEST_REFRESH_S = PACE.refresh_ms * (100 + JITTER_PERCENT) // 100_000
REPLACED_WITHIN_S = 3 * PERIOD_S
LEAVES = {server_id: tuple(new_demo_leaf().base64 for _ in range(8)) for server_id in SERVERS}
MASTER = new_master_key()


@dataclass(frozen=True, slots=True)
class Handed:
    """One structure that a router received, with its time."""

    at_s: int
    plan: PlannedPublication
    structure: MetaLeaseSet
    is_first: bool
    """True for the first structure of a process, which does not know the structures of earlier processes."""

    @property
    def first_end_s(self) -> int:
        return min(lease.ends_s for lease in self.structure.leases)


@dataclass
class Story:
    """The farm, its log, and the three servers that write it."""

    seed: int
    random: Random = field(init=False)
    keys: dict[int, SigningKey] = field(init=False)
    handed_over: dict[int, Publication] = field(default_factory=dict)
    down_until_s: dict[int, int] = field(default_factory=lambda: dict.fromkeys(SERVERS, 0))
    switched: dict[int, PublishConfig] = field(default_factory=lambda: dict.fromkeys(SERVERS, PublishConfig.AUTO))
    published: list[Handed] = field(default_factory=list)
    index: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.farm = AuthoredFarm(NOW_S * 1000, FarmTuning(period_ms=PERIOD_S * 1000))
        self.log_time = LogTime(NOW_S * 1000, 0, PERIOD_S * 1000)
        self.keys = {server_id: MASTER.sign_transient(NOW_S) for server_id in SERVERS}

    def run(self, seconds: int) -> None:
        """Write due entries second by second, and let every running server plan a publication."""
        for second in range(seconds):
            if second % PERIOD_S == 0:
                self._write(Clock((NOW_S + second) * 1000, 1))
                self.log_time.clock_applied(self.farm.state.log_time_ms, second * 1000)
            for server_id in SERVERS:
                if self.down_until_s[server_id] > second:
                    continue
                if second % PERIOD_S == 7 * server_id:
                    self._write(self._report(server_id, second))
                self._plan(server_id, second)

    def _report(self, server_id: int, second: int) -> Report:
        if self.random.random() < 0.01:
            self.down_until_s[server_id] = second + self.random.randint(20, 400)
            self.handed_over.pop(server_id, None)
        if self.random.random() < 0.01:
            self.switched[server_id] = self.random.choice((PublishConfig.AUTO, PublishConfig.OFF, PublishConfig.ON))
        return report(
            server_id,
            (NOW_S + second) * 1000,
            job_lag_ms=self.random.uniform(0, 300),
            destination=MASTER.destination.base64,
            publish_config=self.switched[server_id],
            destinations=tuple(
                leaf(name, healthy=self.random.random() < 0.997, load=0.3 + self.random.uniform(-0.02, 0.02))
                for name in LEAVES[server_id]
            ),
        )

    def _plan(self, server_id: int, second: int) -> None:
        plan = plan_publication(
            self.farm.state,
            MASTER.destination.base64,
            server_id,
            PACE,
            self.log_time.paced(second * 1000),
            handed_over=self.handed_over.get(server_id),
        )
        if plan is not None and self._write(plan.publication):
            key = self.keys[server_id]
            structure = decode(key.publication(plan.publication.published_s, plan.entries))
            self.published.append(Handed(second, plan, structure, is_first=server_id not in self.handed_over))
            self.handed_over[server_id] = plan.publication

    def _write(self, record: Record) -> bool:
        self.index += 1
        changes = self.farm.apply(self.index, 1, record)
        return any(isinstance(change, PublicationAccepted) for change in changes)


@pytest.fixture(scope="module", params=[0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2, 3))])
def story(request: pytest.FixtureRequest) -> Story:
    made = Story(seed=request.param)
    made.run(2 * 3_600)
    return made


def test_java_router_accepts_each_successor(story: Story) -> None:
    before: MetaLeaseSet | None = None
    for handed in story.published:
        reasons = check_acceptable_to_java_router(handed.structure, NOW_S + handed.at_s, before)
        assert reasons == [], f"seed {story.seed}, second {handed.at_s}"
        before = handed.structure


def test_published_seconds_and_first_end_rise(story: Story) -> None:
    """A floodfill forwards a structure only if its first entry ends later than the first entry of the previous one."""
    seconds = [handed.structure.published_s for handed in story.published]
    ends = [handed.first_end_s for handed in story.published]
    assert all(earlier < later for earlier, later in pairwise(seconds)), f"seed {story.seed}"
    assert all(earlier < later for earlier, later in pairwise(ends)), f"seed {story.seed}"


def test_structure_has_1_to_16_distinct_destinations(story: Story) -> None:
    sizes = {len(handed.structure.leases) for handed in story.published}
    assert sizes <= set(range(1, LEAVES_MAX + 1))
    assert LEAVES_MAX in sizes
    for handed in story.published:
        assert len({lease.destination_hash for lease in handed.structure.leases}) == len(handed.structure.leases)


def test_published_structure_has_15_minutes_left(story: Story) -> None:
    """At the next publication fifteen minutes remain, less the time to replace a failed publisher."""
    for earlier, later in pairwise(story.published):
        left_s = earlier.first_end_s - (NOW_S + later.at_s)
        same = earlier.plan.publication.server_id == later.plan.publication.server_id
        least_s = ENTRY_REMAINING_S - (0 if same else REPLACED_WITHIN_S)
        assert left_s >= least_s, f"seed {story.seed}, second {later.at_s}: {left_s} s"


def test_publisher_interval_is_within_limits(story: Story) -> None:
    refreshes = changes = 0
    for earlier, later in pairwise(story.published):
        one, other = earlier.plan.publication, later.plan.publication
        if one.server_id != other.server_id:
            continue
        waited_s = later.at_s - earlier.at_s
        context = f"seed {story.seed}, second {later.at_s}: after {waited_s} s"
        assert waited_s <= LONGEST_REFRESH_S + 1, context
        if later.is_first:
            continue
        if one.content_hash == other.content_hash:
            refreshes += 1
            assert waited_s >= PACE.refresh_ms * (100 - JITTER_PERCENT) // 100_000, context
        else:
            changes += 1
            assert waited_s >= PACE.change_ms // 1000, context
    assert min(changes, refreshes) > 0


def test_accepted_publication_equals_signed_structure(story: Story) -> None:
    for handed in story.published:
        entries, publication = handed.plan.entries, handed.plan.publication
        assert content_hash(tuple(Leaf(each.destination, each.cost) for each in entries)) == publication.content_hash
        signed = {lease.destination_hash: lease.cost for lease in handed.structure.leases}
        assert signed == {destination_from_base64(each.destination).hash: each.cost for each in entries}
        assert handed.structure.published_s == publication.published_s
