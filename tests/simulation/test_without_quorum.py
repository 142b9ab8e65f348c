"""Farms that split randomly into parts without a quorum: each part keeps publishing until the log continues.

Each story is a seed. Servers of a farm have committed for a while. Then the farm splits into parts that see only
themselves; the parts and the servers' health change a few times. Then the log continues. The checks apply to any parts
and any clock errors. Exactly one server of each part publishes, if one is able. Every published structure has entries,
and the timestamps of each server's structures rise. In each part, the structure is refreshed in time. The first
committed publication afterwards has a later timestamp than all before.
"""

from dataclasses import dataclass, field
from random import Random

from msgspec.structs import replace

from bridge.core.farm.state_machine import PublicationAccepted
from bridge.core.log.records import Clock, Publication, Report
from bridge.core.membership.admission import Admitted
from bridge.core.publishing.publication import JITTER_PERCENT, Pace, plan_publication
from bridge.core.publishing.without_quorum import LocalObservations, acting_publisher, plan_without_quorum
from bridge.core.state.farm_state import FarmState
from tests.effort import over_seeds
from tests.spec.farm_stories import BASE_MS, MASTER, PERIOD_MS, TUNING, Log, leaf, report

PACE = Pace()
STEP_MS = 5_000
LONGEST_WAIT_MS = PACE.refresh_ms * (100 + JITTER_PERCENT) // 100


@dataclass
class Story:
    """One farm and its current parts."""

    random: Random
    log: Log = field(default_factory=Log)
    now_ms: int = BASE_MS
    handed_over: dict[int, Publication] = field(default_factory=dict)
    node_ids: dict[int, bytes] = field(default_factory=dict)
    parts: list[frozenset[int]] = field(default_factory=list)
    ahead_ms: dict[int, int] = field(default_factory=dict)
    """Error of each server's estimate of log time."""
    joined_ms: dict[int, int] = field(default_factory=dict)
    """Time when each server joined its part."""

    def begin(self) -> None:
        """Choose a publisher; then the log stops."""
        servers = range(1, self.random.randint(2, 7) + 1)
        self.node_ids = {each: self.random.randbytes(8) for each in servers}
        self.ahead_ms = {each: self.random.randint(-10_000, 10_000) for each in servers}
        self.log.append(*(self.report(each) for each in servers))
        self.commit_time(60_000)
        self.log.append(*(self.report(each) for each in servers))
        self.publish_with_quorum()

    def report(self, server_id: int) -> Report:
        """Return the server's current report; one in five lacks a key, and one in five has an unhealthy leaf."""
        key_less = self.node_ids[server_id][0] < 51
        last = self.handed_over.get(server_id)
        return report(
            server_id,
            self.now_ms,
            can_sign_until_s=None if key_less else 2**32 - 1,
            last_published_time_ms=0 if last is None else last.published_s * 1000,
            destinations=(leaf(f"leaf{server_id}", healthy=self.random.random() < 0.8),),
        )

    def commit_time(self, ahead_ms: int) -> None:
        self.now_ms += ahead_ms
        self.log.append(Clock(self.now_ms, 1, PERIOD_MS))

    def publish_with_quorum(self) -> Publication | None:
        """Commit the next publication of the chosen publisher; return it, or None."""
        server_id = self.log.publisher
        if server_id is None:
            return None
        state, held = self.log.farm.state, self.handed_over.get(server_id)
        planned = plan_publication(state, MASTER, server_id, PACE, self.now_ms, handed_over=held)
        if planned is None:
            return None
        assert self.log.append(planned.publication) == [PublicationAccepted(planned.publication)]
        self.handed_over[server_id] = planned.publication
        return planned.publication

    @property
    def state(self) -> FarmState:
        """Return the last state known to all servers."""
        admitted = {each: Admitted(node_id) for each, node_id in self.node_ids.items()}
        return replace(self.log.farm.state, admitted=admitted)

    def fall_apart(self) -> None:
        """Split the farm into new parts; servers in no part are down."""
        alive = [each for each in self.node_ids if self.random.random() < 0.8]
        sides = self.random.randint(1, 3)
        placed = {each: self.random.randrange(sides) for each in alive}
        before = {each: part for part in self.parts for each in part}
        self.parts = [part for side in range(sides) if (part := frozenset(e for e in alive if placed[e] == side))]
        for part in self.parts:
            for each in part:
                if before.get(each) != part:
                    self.joined_ms[each] = self.now_ms

    def step(self) -> None:
        """Run a few seconds of the outage."""
        self.now_ms += STEP_MS
        for part in self.parts:
            views = {each: LocalObservations(self.report(each), part - {each}) for each in sorted(part)}
            now_s = self.now_ms // 1000
            acting = {acting_publisher(self.state, MASTER, around, now_s) for around in views.values()}
            assert len(acting) == 1, f"{acting} publish in {sorted(part)}"
            [publisher] = acting
            eligible = [each for each, around in views.items() if around.own.masters[0].can_sign_until_s]
            assert (publisher in eligible) if eligible else publisher is None
            for server_id, around in views.items():
                self.let_publish(server_id, around)
            if publisher is not None and self.now_ms - self.joined_ms[publisher] > 0:
                age_ms = self.now_ms - self.handed_over[publisher].published_s * 1000
                assert age_ms <= LONGEST_WAIT_MS + STEP_MS + abs(self.ahead_ms[publisher])

    def let_publish(self, server_id: int, around: LocalObservations) -> None:
        previous = self.handed_over.get(server_id)
        own_ms = self.now_ms + self.ahead_ms[server_id]
        planned = plan_without_quorum(self.state, MASTER, TUNING, PACE, around, own_ms, handed_over=previous)
        if planned is None:
            return
        assert planned.entries
        earlier = max([0 if previous is None else previous.published_s, *self.committed_seconds()])
        assert planned.publication.published_s > earlier
        self.handed_over[server_id] = planned.publication

    def committed_seconds(self) -> list[int]:
        """Return the seconds of the committed publication, if any."""
        known = self.state.masters.get(MASTER)
        return [] if known is None or known.publication is None else [known.publication.published_s]

    def end(self) -> None:
        """End the outage: all servers report, and a publisher continues."""
        latest_s = max((each.published_s for each in self.handed_over.values()), default=0)
        self.commit_time(1_000)
        self.log.append(*(self.report(each) for each in self.node_ids))
        for _ in range(2 * LONGEST_WAIT_MS // PERIOD_MS):
            published = self.publish_with_quorum()
            if published is not None:
                assert published.published_s > latest_s
                return
            self.commit_time(PERIOD_MS)
            self.log.append(*(self.report(each) for each in self.node_ids))
        publishers = [each for each, node_id in self.node_ids.items() if node_id[0] >= 51]
        assert not publishers, "no node published after the outage"


@over_seeds(40)
def test_split_farm_parts_publish_until_log_continues(seed: int) -> None:
    story = Story(Random(seed))
    story.begin()
    for _ in range(story.random.randint(1, 4)):
        story.fall_apart()
        for _ in range(story.random.randint(1, 120)):
            story.step()
    story.end()
