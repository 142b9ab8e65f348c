"""Servers that applied the same prefix of the log have the same state, regardless of how they reached it.

The log has the entries of a hostile environment, as bytes. They are reports of servers with up to two masters, clock
entries, and publications by each node that considers itself the publisher. The log also has commands within and outside
their limits, repetitions under one request id, and garbage. One server applies it in order. Another one receives some
entries twice. A third restarts at random places from its own snapshot, as bytes, and receives the missing entries
together. Time is simulated; a failure names its seed.
"""

from collections.abc import AsyncIterator, Iterable
from random import Random

import pytest
from msgspec.structs import replace

from bridge.core.farm.state_machine import Farm
from bridge.core.log.feature_level import FIRST_LEVEL, SUPPORTED_LEVEL, VERSION_OF
from bridge.core.log.figures import RouterStatus
from bridge.core.log.hashes import hash_of
from bridge.core.log.kinds import kind_of
from bridge.core.log.records import (
    Clock,
    CostFactor,
    Exclusion,
    Factors,
    Force,
    Foreign,
    GroupOffset,
    KafkaRecord,
    LeafStatus,
    Level,
    MetaStatus,
    OperatorCommand,
    ProducerStart,
    Publication,
    PublishConfig,
    Removal,
    Report,
    request_of,
)
from bridge.core.publishing.entries import LEAVES_MAX
from bridge.core.publishing.publication import Pace, plan_publication
from bridge.core.state.farm_state import FarmTuning
from bridge.core.state.kafka_clients import Produced
from bridge.core.state.reqids import request_text
from bridge.wire.log.entries import EntryReader, encode
from bridge.wire.log.snapshot import FarmSnapshot, decode_farm, encode_farm
from tests.authored import CLUSTER_ID, node_id, signed
from tests.destinations import new_demo_leaf
from tests.effort import few_of, over_seeds

BASE_MS = 1_767_225_600_000
PERIOD_MS = 30_000
ENTRIES = 250
LEVEL_RAISED_AT = 40
FOUNDERS = tuple(node_id(number) for number in range(1, 6))
READER = EntryReader(CLUSTER_ID)
MASTERS = tuple(new_demo_leaf().base64 for _ in range(3))
LEAVES = tuple(new_demo_leaf().base64 for _ in range(30))
GARBAGE = (b"", b"{}", b"[1]", b"\xff\x00", b'{"clock":{"time":"now"}}', b'{"router":{},"clock":{}}', b"{" * 300)
PACE = Pace()


class World:
    """Writes the log; it tracks the farm's state, so that some entries are valid."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.farm = Farm(BASE_MS, FarmTuning(period_ms=PERIOD_MS), FOUNDERS)
        self.now_ms = 0
        self.log: list[bytes] = []

    def write(self) -> None:
        """Append one more entry."""
        self.now_ms += self.random.randint(0, PERIOD_MS // 3)
        raised = FIRST_LEVEL + 1 + len(self.log) - LEVEL_RAISED_AT
        made = Level(raised, VERSION_OF[raised]) if FIRST_LEVEL < raised <= SUPPORTED_LEVEL else self._entry()
        entry = made if isinstance(made, bytes) else self._proven(made)
        if self.random.random() < 0.1 and not isinstance(made, Level):
            entry = self._again() or entry
        self.log.append(entry)
        apply(self.farm, self.log, len(self.log) - 1)

    def _proven(self, made: Report | Clock | Publication | OperatorCommand | KafkaRecord | Level) -> bytes:
        """Return the signed entry; occasionally signed by another server or by an unknown node, or unsigned."""
        entry = encode(made)
        own = made.server_id if isinstance(made, Report | Clock | Publication) else self.random.randint(1, 5)
        match self.random.choices(range(4), (90, 4, 3, 3))[0] if not isinstance(made, Level) else 0:
            case 0:
                return signed(entry, own)
            case 1:
                return signed(entry, self.random.randint(1, 5))
            case 2:
                return signed(entry, 99)
            case _:
                return entry

    def _again(self) -> bytes | None:
        return self.random.choice(self.log) if self.log else None

    def _entry(  # noqa: C901, PLR0911 - one for each kind
        self,
    ) -> Report | Clock | Publication | OperatorCommand | KafkaRecord | bytes:
        leaf_hash = hash_of(self.random.choice(LEAVES))
        match self.random.choices(range(11), (40, 25, 8, 6, 4, 4, 6, 2, 3, 3, 5))[0]:
            case 0:
                return self._report()
            case 1:
                return Clock(BASE_MS + self.now_ms + self.random.choice((0, 0, 0, -40_000, 40_000)), 1, PERIOD_MS)
            case 2:
                return self._publication()
            case 3:
                return Exclusion(leaf_hash, excluded=self.random.random() < 0.6)
            case 4:
                return CostFactor(leaf_hash, self.random.choice((0.05, 0.3, 1.0, 4.0, 12.0)))
            case 5:
                return Force(self.random.choice(MASTERS), request=self._request())
            case 6:
                through = len(self.log) + self.random.randint(-5, 2)
                factors = {hash_of(each): self.random.uniform(0.45, 2.02) for each in self.random.sample(LEAVES, 4)}
                return Factors(max(0, through), "random", factors, self._request())
            case 7:
                return Removal(self.random.randint(0, 6), removed=self.random.random() < 0.5)
            case 8:
                return ProducerStart(f"producer {len(self.log)}", self._request())
            case 9:
                return GroupOffset(f"group {self.random.randint(1, 3)}", self.random.randint(0, 300))
            case _:
                return self.random.choice(GARBAGE)

    def _request(self) -> str | None:
        made_s = self.farm.state.log_time_ms // 1000 + self.random.choice((0, 0, -100, 2_000, -30_000))
        reqid = made_s.to_bytes(4, "big") + bytes(7) + bytes([self.random.randint(1, 9)])
        own = f"client-0-{self.random.randint(1, 9)}"
        producers = self.farm.state.kafka.producers
        producer_id = self.random.choice((*producers, 1))
        next_sequence = producers[producer_id].sequence if producer_id in producers else 0
        produced = Produced(producer_id, 0, max(0, next_sequence + self.random.choice((0, 0, -1, 1))))
        return self.random.choice((None, own, "another request id", request_text(reqid), str(produced), str(produced)))

    def _report(self) -> Report:
        server_id = self.random.randint(1, 5)
        served = self.random.sample(MASTERS, self.random.randint(0, 2))
        parts = []
        for master in served:
            allowed = self.random.choice(tuple(PublishConfig))
            ends_s = self.random.choice((None, BASE_MS // 1000 + 900, 2**32 - 1, 2**32 - 1))
            parts.append(
                MetaStatus(master, allowed, publishing=False, last_published_time_ms=0, can_sign_until_s=ends_s)
            )
        leaves = tuple(
            LeafStatus(
                each,
                healthy=self.random.random() < 0.7,
                master_hash=self.random.choice((None, *map(hash_of, served))),
                configured_connections=100,
                current_connections=self.random.randint(0, 150),
            )
            for each in self.random.sample(LEAVES, self.random.randint(0, 12))
        )
        attached, lag_ms = self.random.random() < 0.9, self.random.uniform(0, 900)
        router = RouterStatus(attached=attached, uptime_ms=self.now_ms, job_lag_ms=lag_ms)
        date_ms = BASE_MS + self.now_ms + self.random.choice((0, 0, 0, 0, -70_000, 100_000))
        return Report("farm", date_ms, server_id, router, tuple(parts), leaves, request=self._request())

    def _publication(self) -> Publication:
        master, server_id = self.random.choice(MASTERS), self.random.randint(1, 5)
        plan = plan_publication(self.farm.state, master, server_id, PACE, self.farm.state.log_time_ms, handed_over=None)
        if plan is not None:
            return plan.publication
        return Publication(master, server_id, BASE_MS // 1000 + self.random.randint(0, 10**6), "made up")


def apply(farm: Farm, log: list[bytes], place: int) -> None:
    """Apply entry `place` (from 0) as every server does."""
    farm.apply(place + 1, 1, READER.read(log[place]))


def fresh() -> Farm:
    return Farm(BASE_MS, FarmTuning(period_ms=PERIOD_MS), FOUNDERS)


async def restarted(farm: Farm) -> Farm:
    """Return the server after a restart from its snapshot, read in chunks."""
    content = b"".join(
        encode_farm(FarmSnapshot(farm.state, farm.tuning.period_ms, farm.sessions.dump(), reqids=farm.reqids.dump()))
    )

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 4_099):
            yield content[start : start + 4_099]

    snapshot = await decode_farm(chunks())
    restored = fresh()
    restored.restore(snapshot.farm, snapshot.period_ms, snapshot.sessions, snapshot.reqids)
    return restored


@over_seeds(20, quick=1)
async def test_state_depends_only_on_log_prefix(seed: int) -> None:
    world = World(seed)
    random = Random(-1 - seed)
    stuttering, restarting = fresh(), fresh()
    compared = 0
    for _ in range(ENTRIES):
        world.write()
        apply(stuttering, world.log, len(world.log) - 1)
        if random.random() < 0.2:
            apply(stuttering, world.log, random.randrange(len(world.log)))
        if random.random() < 0.05:
            restarting = await restarted(restarting)
            # After the snapshot, it receives all remaining entries together.
            for place in range(restarting.state.applied_index, len(world.log)):
                apply(restarting, world.log, place)
            assert restarting.state == world.farm.state, f"seed {seed}, entry {len(world.log)}"
            assert restarting.sessions.dump() == world.farm.sessions.dump(), f"seed {seed}, entry {len(world.log)}"
            assert restarting.reqids.dump() == world.farm.reqids.dump(), f"seed {seed}, entry {len(world.log)}"
            compared += 1
        assert stuttering.state == world.farm.state, f"seed {seed}, entry {len(world.log)}"
    assert compared > 2
    assert world.farm.reqids.dump()
    assert world.farm.state.kafka.skipped
    assert any(each.runs for each in world.farm.state.kafka.producers.values())


@pytest.mark.parametrize("seed", range(3))
def test_older_version_has_same_state_below_new_level(seed: int) -> None:
    """An older version treats unknown kinds as a client's own JSON objects, and stops at the new level."""
    world, older, unknown = World(seed), fresh(), 0
    for _ in range(LEVEL_RAISED_AT):
        world.write()
        entry = READER.read(world.log[-1])
        record = entry.record
        if kind_of(record).level > FIRST_LEVEL:
            unknown += 1
            foreign = Foreign("a JSON object of an unknown kind", request_of(record))
            entry = replace(entry, record=foreign)
        older.apply(len(world.log), 1, entry)
        assert older.state == world.farm.state, f"seed {seed}, entry {len(world.log)}"
        assert older.sessions.dump() == world.farm.sessions.dump(), f"seed {seed}, entry {len(world.log)}"
    assert unknown > 0


@over_seeds(20, quick=1)
def test_state_respects_operator_limits_after_every_entry(seed: int) -> None:
    """Only permitted nodes publish. They publish at most sixteen leaves, none excluded or of another master."""
    world = World(seed)
    published = listed = 0
    for _ in range(ENTRIES):
        world.write()
        state, context = world.farm.state, f"seed {seed}, entry {len(world.log)}: {world.log[-1][:80]!r}"
        for name, master in state.masters.items():
            chosen = None if master.choice.server_id is None else state.servers[master.choice.server_id]
            if chosen is not None:
                published += 1
                part = chosen.report.part_in(name)
                assert part is not None, context
                assert part.publish_config is not PublishConfig.OFF, context
                assert chosen.report.server_id not in state.removed, context
            assert len(master.leaves) <= LEAVES_MAX, context
            listed += bool(master.leaves)
            for leaf in master.leaves:
                assert hash_of(leaf.destination) not in state.weights.excluded, context
                assert 0 <= leaf.cost <= 200, context
            known = {leaf.destination for _, leaf in state.leaves_of(name)}
            assert {leaf.destination for leaf in master.leaves} <= known, context
            assert bool(master.leaves) == bool(known), f"{context}: known leaves are listed"
        for factor in state.weights.factors.values():
            assert 500 <= factor.thousandths <= 2_000, context
    assert published > 0
    assert listed > 0


@pytest.mark.parametrize("seeds", few_of({"one": [1], "several": range(3)}, "one"))
def test_random_logs_contain_every_kind_of_entry(seeds: Iterable[int]) -> None:
    kinds, changes = set[str](), set[str]()
    for seed in seeds:
        world, second = World(seed), fresh()
        for _ in range(ENTRIES):
            world.write()
            record = READER.read(world.log[-1])
            kinds.add(type(record.record).__name__)
            changes |= {type(each).__name__ for each in second.apply(len(world.log), 1, record)}
    assert kinds == {
        "Clock", "CostFactor", "Exclusion", "Factors", "Force", "Foreign", "GroupOffset", "Level", "ProducerStart",
        "Publication", "Removal", "Report",
    }  # fmt: skip
    assert {
        "PublicationAccepted", "PublicationRefused", "PublisherChanged", "ClockOff", "ExclusionChanged",
        "CommandRefused", "CostFactorChanged", "FactorsAccepted", "PublicationForced", "RemovalChanged",
        "EntryTooEarly", "LevelRaised",
    } <= changes  # fmt: skip
