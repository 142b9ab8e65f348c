"""`python -m tests.simulation entry-fuzz`: members' entries with extreme fields, applied by a farm.

    an entry of some kind ──▶ one or two fields replaced by extremes ──▶ signed by a member ──▶ EntryReader ──▶ Farm
                                                                                                     │
                              picture as JSON ◀── publications planned ◀── snapshot and back ◀───────┘ periodically

An entry signed by a member stays in the log permanently, and every server applies it at each start. So no entry may
raise an error, and everything derived from the state must still be computable: publications, snapshots, views.
"""

import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from msgspec.structs import replace

from bridge.core.farm.state_machine import Farm
from bridge.core.log.feature_level import FIRST_LEVEL
from bridge.core.log.figures import RouterStatus
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import (
    Admission,
    Approval,
    Clock,
    ConditionStatus,
    CostFactor,
    Exclusion,
    Factors,
    Force,
    LeafFault,
    LeafStatus,
    Level,
    Measurement,
    MetaStatus,
    ProvenRecord,
    Publication,
    PublishConfig,
    Removal,
    Report,
    ReportedDirectory,
)
from bridge.core.membership.authors import EntryWithoutEffect
from bridge.core.publishing.publication import Pace, plan_publication
from bridge.core.state.farm_state import FarmTuning
from bridge.wire.i2p.structures import PADDING_SEED_BYTES, ed25519_destination
from bridge.wire.log.entries import EntryReader, encode
from bridge.wire.log.snapshot import FarmSnapshot, decode_farm_at_once, encode_farm
from tests.authored import CLUSTER_ID, key_of, node_id, signed
from tests.simulation.fuzzing import Subject

BASE_MS = 1_767_225_600_000
PERIOD_MS = 30_000
FOUNDERS = tuple(node_id(number) for number in range(1, 4))
LATE_MS = BASE_MS + 600_000
MASTER, LEAF = (
    ed25519_destination(key_of(number).public_key().public_bytes_raw(), bytes(PADDING_SEED_BYTES)).base64
    for number in (101, 102)
)
"""Destinations, equal in each process, so that a trial with entries about them has the same trace in each."""
EXTREMES: tuple[Any, ...] = (
    0,
    1,
    -1,
    2**31 - 1,
    2**32,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    10**400,
    -(2**63),
    0.0,
    -0.0,
    5e-324,
    1.7976931348623157e308,
    "",
    "x" * 60_000,
    "\x00\x1b[2J\u202e",
    "\ud800",
    None,
    True,
    [],
    [[]] * 200,
    {},
    {"": None},
)
LATER = 64
"""Number of entries between two checks of the complete state."""


_CONDITIONS = tuple(ConditionStatus(each, 8, 9, "refused") for each in LeafFault)
_LEAF = LeafStatus(LEAF, True, hash_of(MASTER), 1, 2, 3, 4, 5, 6, 7, (), _CONDITIONS)  # noqa: FBT003 - by place in the record
REPORT = Report(
    "farm",
    LATE_MS,
    1,
    RouterStatus(
        attached=True,
        uptime_ms=1,
        job_lag_ms=2.5,
        exploratory_tunnels=3,
        participating_tunnels=4,
        configured_bandwidth_bytes_per_s=5,
        current_bandwidth_bytes_per_s=6,
        cpu_percent=7.5,
        memory_percent=8.5,
    ),
    (MetaStatus(MASTER, PublishConfig.AUTO, publishing=True, last_published_time_ms=0, can_sign_until_s=2**32 - 1),),
    (_LEAF,),
    (Measurement(hash_of(LEAF), True, 3),),  # noqa: FBT003 - likewise
    (Measurement(hash_of(MASTER), False, None),),  # noqa: FBT003 - likewise
    directory=ReportedDirectory(hash_of(LEAF), "no SAM"),
)


def samples() -> tuple[dict[str, Any], ...]:
    """Return one entry of each of these kinds, with all its fields."""
    records = (
        replace(REPORT, request="client-0-1"),
        Clock(BASE_MS, 1, 30_000),
        Publication(MASTER, 1, BASE_MS // 1000, "c" * 43),
        Admission(node_id(9), "nine", key_of(9).public_key().public_bytes_raw(), 4),
        Approval(node_id(8), "nine", node_id(9), None, 5),
        Level(FIRST_LEVEL + 1, "0.1.0"),
        Exclusion(hash_of(LEAF), excluded=True, request="client-0-1"),
        CostFactor(hash_of(LEAF), 2.0),
        Force(MASTER),
        Factors(3, "formula", {hash_of(LEAF): 1.5}),
        Removal(2, removed=True),
    )
    return tuple(json.loads(encode(record)) for record in records)


SAMPLES = samples()


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in a JSON document, outer ones first."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: object) -> Any:
    if not path:
        return new
    items = enumerate(value) if isinstance(value, list) else value.items()
    changed = {key: replaced(each, path[1:], new) if key == path[0] else each for key, each in items}
    return list(changed.values()) if isinstance(value, list) else changed


def unsigned(entry: dict[str, Any], random: Random) -> bytes:
    """Return the entry with one or two fields at extremes."""
    changed: Any = entry
    for _ in range(random.choice((1, 1, 1, 2))):
        changed = replaced(changed, random.choice(list(places(changed))), random.choice(EXTREMES))
        if not isinstance(changed, dict) or not changed:
            break
    return json.dumps(changed).encode()


class Applied(Subject[bytes]):
    """A farm that applies the entries one after another."""

    expected = frozenset({"with effect", "without effect", "foreign", "published", "restored"})

    def __init__(self) -> None:
        self.farm = self._fresh()
        self.reader = EntryReader(CLUSTER_ID)
        self.index = 0

    def make(self, random: Random) -> bytes:
        """Return an entry of a member; some are valid and advance the time."""
        entry = random.choice(SAMPLES)
        if random.random() < 0.3:
            clock = Clock(LATE_MS + random.choice((-20_000, 0, 40_000)), 1, 30_000)
            return signed(random.choice((encode(clock), encode(REPORT), json.dumps(entry).encode())), 1)
        data = unsigned(entry, random)
        try:
            return signed(data, random.randint(1, 3))
        except ValueError:
            return data  # a farm would not accept it, so it is not signed

    def check(self, data: bytes, random: Random) -> Sequence[str]:
        """Apply one entry; raises any unexpected error."""
        self.index += 1
        entry = self.reader.read(data)
        changes = self.farm.apply(self.index, 1, entry)
        ineffective = any(isinstance(change, EntryWithoutEffect) for change in changes)
        outcomes = ["without effect" if ineffective else "with effect"]
        if type(entry.record).__name__ == "Foreign":
            outcomes.append("foreign")
        if self.index % LATER == 0:
            outcomes += self._check_snapshot(random)
        return outcomes

    def _check_snapshot(self, random: Random) -> Iterator[str]:
        state = self.farm.state
        image = b"".join(encode_farm(FarmSnapshot(state, self.farm.tuning.period_ms, self.farm.sessions.dump())))
        snapshot = decode_farm_at_once([image])
        restored = self._fresh()
        restored.restore(snapshot.farm, snapshot.period_ms, snapshot.sessions)
        if restored.state != state:
            raise AssertionError("a snapshot restores another state")
        yield "restored"
        yield from self._continue(restored)
        if random.random() < 0.2:
            self.farm, self.index = self._fresh(), 0
        else:
            self.farm = restored

    def _continue(self, farm: Farm) -> Iterator[str]:
        """Apply correct reports of servers 2 and 3 for six periods, and plan the publications of each."""
        index = self.index
        for _ in range(6):
            farm.apply(index := index + 1, 2, self._correct(Clock(farm.state.log_time_ms + PERIOD_MS, 2, PERIOD_MS)))
            for server_id in (2, 3):
                report = replace(REPORT, server_id=server_id, date_ms=farm.state.log_time_ms)
                farm.apply(index := index + 1, 2, self._correct(report))
        state = farm.state
        plans = [
            plan_publication(state, master, server_id, Pace(), state.log_time_ms, handed_over=None)
            for master in state.masters
            for server_id in (1, 2, 3, 2**40)
        ]
        if any(plans):
            yield "published"

    def _correct(self, record: Clock | Report) -> ProvenRecord:
        return self.reader.read(signed(record))

    def _fresh(self) -> Farm:
        return Farm(BASE_MS, FarmTuning(), FOUNDERS)
