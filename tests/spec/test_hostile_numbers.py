"""Numbers of all entries, set to extremes by a hostile leader: operators' commands still work, and the state is stored.

The numbers are those in the encoded `SAMPLES`, so a new number of a record is tested without a change here. A new kind
of record needs a sample (`test_entry_kinds_all_have_samples`).
"""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from bridge.core.farm import state_machine
from bridge.core.farm.state_machine import Change, EntryTooEarly, Farm, LevelRaised, PublicationAccepted
from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.core.log.fields import BOX_BYTES
from bridge.core.log.figures import RouterStatus
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import (
    Admission,
    Approval,
    ClientKey,
    Clock,
    Correction,
    CostFactor,
    Eviction,
    Exclusion,
    Factors,
    Force,
    Foreign,
    GroupOffset,
    KeyReplacement,
    LeafStatus,
    Level,
    MetaStatus,
    ProducerStart,
    ProvenRecord,
    Publication,
    PublishConfig,
    Record,
    Removal,
    Report,
    Scope,
)
from bridge.core.log.weights import CostFactorChanged, ExclusionChanged
from bridge.core.membership import eviction
from bridge.core.membership.admission import ServerAdmitted, Standing, next_raft_id
from bridge.core.membership.authors import EntryWithoutEffect
from bridge.core.membership.eviction import NewEra, Rekeying, ServerEvicted
from bridge.core.publishing.publication import Pace, plan_publication
from bridge.core.state.farm_state import FarmTuning
from bridge.node.raft.farm_content import objection_to_snapshot, objection_to_state
from bridge.wire.log.entries import EntryReader, encode
from bridge.wire.log.proof import sign_entry
from bridge.wire.log.snapshot import FarmSnapshot, decode_farm_at_once, encode_farm
from gossip.wire import node_id_of
from tests.authored import CLUSTER_ID, key_of, node_id
from tests.effort import IS_SOAK, each_case
from tests.wire.test_application import FULL, destination

ALL_EXTREMES = (0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1, 2**53 - 1, 2**53, 2**60, 2**63 - 1, 2**64)
EXTREMES = ALL_EXTREMES if IS_SOAK else (0, 1, 2**32 - 1, 2**53 - 1, 2**64)
PROOF_NUMBERS = (20_000, 2**31, 2**53 - 1)
BASE_MS = 1_767_225_600_000
PERIOD_MS = 30_000
MASTER, LEAF = destination(0), destination(1)
ONE, TWO, HOSTILE, GUEST = 1, 2, 3, 9
OWN_NUMBER = 10_000
"""The next number of each correct author."""


def report(server: int, date_ms: int) -> Report:
    """Return a report of a healthy server that can publish."""
    leaf = LeafStatus(destination(server), healthy=True, uptime_ms=3_600_000, configured_tunnels=4, current_tunnels=4)
    meta = MetaStatus(
        MASTER, PublishConfig.AUTO, publishing=False, last_published_time_ms=0, can_sign_until_s=2**32 - 1
    )
    return Report("farm", date_ms, server, RouterStatus(attached=True), (meta,), (leaf,))


def key_bytes(server: int) -> bytes:
    return key_of(server).public_key().public_bytes_raw()


SAMPLES: tuple[Record, ...] = (
    replace(FULL, server_id=HOSTILE, request=None),
    Clock(BASE_MS + 31_000, HOSTILE, PERIOD_MS),
    Publication(MASTER, HOSTILE, BASE_MS // 1000 + 31, "00"),
    Admission(node_id(GUEST), "guest", key_bytes(GUEST), 4),
    Approval(node_id(GUEST + 1), "guest", node_id(GUEST), key_bytes(GUEST + 1), 5),
    Eviction(node_id(GUEST + 2), 1, ((node_id(ONE), bytes(BOX_BYTES)),)),
    KeyReplacement(1, ((node_id(ONE), bytes(BOX_BYTES)),)),
    Level(SUPPORTED_LEVEL + 1, "9.9.9"),
    Exclusion(hash_of(LEAF), excluded=True),
    CostFactor(hash_of(LEAF), 2),
    Force(MASTER),
    Factors(3, "lag", {hash_of(LEAF): 1}),
    Removal(ONE, removed=True),
    ClientKey(node_id_of(key_bytes(GUEST)), "script", key_bytes(GUEST), (Scope.WEIGHTS,), admitted=True),
    Correction(BASE_MS + 31_000),
    ProducerStart("producer"),
    GroupOffset("readers", 3, 1),
)


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each number in a JSON document."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from paths_of(each, (*path, key))
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield from paths_of(each, (*path, place))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def with_number(document: Any, path: tuple[Any, ...], number: float) -> bytes:
    made = json.loads(json.dumps(document))
    at = made
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = number
    return json.dumps(made).encode()


def hostile_entries(sample: Record) -> Iterator[tuple[str, bytes]]:
    document = json.loads(encode(sample))  # type: ignore[arg-type]  # all samples are kinds of farm entries
    yield "unchanged", json.dumps(document).encode()
    for path in paths_of(document):
        for number in EXTREMES:
            yield f"{'.'.join(map(str, path))} = {number}", with_number(document, path, number)


@cache
def proven(data: bytes, server: int, number: int) -> ProvenRecord:
    """Return the signed entry. It is cached: stories repeat the entries of correct servers, and signing takes long."""
    return EntryReader(CLUSTER_ID).read(sign_entry(data, key_of(server), CLUSTER_ID, number))


class Story:
    """A running farm of three servers; server 3 is the leader, and hostile from here on."""

    def __init__(self) -> None:
        self.farm = Farm(BASE_MS, FarmTuning(PERIOD_MS), (node_id(ONE), node_id(TWO), node_id(HOSTILE)))
        self.farm.state = replace(self.farm.state, level=SUPPORTED_LEVEL)
        self.index = 0
        self.numbers = dict.fromkeys((ONE, TWO), OWN_NUMBER)
        self.index += 1
        self.farm.configure(self.index, 1, ((ONE, TWO, HOSTILE),), (ONE, TWO, HOSTILE))
        self.period(0, (ONE, TWO, HOSTILE))

    def apply_signed(self, data: bytes, server: int, number: int | None = None) -> tuple[Change, ...]:
        """Apply an entry with this server's signature."""
        if number is None:
            number = self.numbers[server] = self.numbers.get(server, OWN_NUMBER) + 1
        self.index += 1
        return self.farm.apply(self.index, 1, proven(data, server, number))

    def append(self, record: Any, server: int = ONE) -> list[type]:
        """Apply a record; return the kinds of the changes."""
        return [type(each) for each in self.apply_signed(encode(record), server)]

    def period(self, after_ms: int, servers: tuple[int, ...] = (ONE, TWO)) -> None:
        """Append reports of the servers, and a clock entry."""
        for server in servers:
            self.append(report(server, BASE_MS + after_ms), server)
        self.append(Clock(BASE_MS + after_ms, ONE), ONE)


def failures_of(story: Story) -> list[str]:
    """Return the functions that fail after the applied entries."""
    objection = storage_objection(story)
    broken = [] if objection is None else [f"it is not stored: {objection}"]
    try:
        broken += [name for name, works in command_results(story) if not works]
    except (ValueError, OverflowError) as error:
        broken.append(f"{type(error).__name__}: {error}")
    if story.farm.state.admitted[HOSTILE].standing is not Standing.EVICTED:
        broken.append("the hostile server is a member")
    return broken


def command_results(story: Story) -> Iterator[tuple[str, bool]]:
    """Yield each command of a correct operator and correct servers, and True if it works."""
    farm, other = story.farm, hash_of(destination(30))
    yield "evict", ServerEvicted in story.append(Eviction(node_id(HOSTILE), farm.state.rekeying.era + 1, ()))
    yield "keys replace", story.append(KeyReplacement(farm.state.rekeying.era + 1, ())) == [NewEra]
    for server in (ONE, TWO):
        story.append(Removal(server, removed=False))
    new = Admission(node_id(20), "new", key_bytes(20), next_raft_id(farm.state.admitted, node_id(20)))
    yield "admit", ServerAdmitted in story.append(new)
    for step in (1, 2, 3):
        story.period(step * PERIOD_MS)
    yield "log time", BASE_MS + 3 * PERIOD_MS <= farm.state.log_time_ms <= BASE_MS + 5 * PERIOD_MS
    yield "exclude", story.append(Exclusion(other, excluded=True)) == [ExclusionChanged]
    yield "cost", story.append(CostFactor(other, 3)) == [CostFactorChanged]
    yield "publish", can_publish(story)
    yield "level raise", story.append(Level(farm.state.level + 1, "0.1.0")) == [LevelRaised]


def can_publish(story: Story) -> bool:
    state = story.farm.state
    publisher = state.masters[MASTER].choice.server_id
    if publisher not in {ONE, TWO}:
        return False
    planned = plan_publication(
        state, MASTER, publisher, Pace.of_period(1), state.log_time_ms + PERIOD_MS, handed_over=None
    )
    return planned is not None and PublicationAccepted in story.append(planned.publication, publisher)


def storage_objection(story: Story) -> str | None:
    """Return the reason why the state cannot be loaded; None if it loads as the same state."""
    farm = story.farm
    objection = objection_to_state(farm.state, farm.tuning.period_ms)
    if objection is not None:
        return objection
    try:
        snapshot = FarmSnapshot(farm.state, farm.tuning.period_ms, farm.sessions.dump(), reqids=farm.reqids.dump())
        stored = b"".join(encode_farm(snapshot))
    except (OverflowError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    # This check also refuses a level above `SUPPORTED_LEVEL`; the tests do not call it with such a state.
    found = objection_to_snapshot(iter((stored,)))
    return found or (
        None if decode_farm_at_once(iter((stored,))).farm == farm.state else "it loads as a different state"
    )


def failures_of_entries(sample: Record) -> list[str]:
    """Return the failures after each hostile variant of the entry, and after all variants in one farm."""
    found = []
    together = Story()
    for number, (name, data) in enumerate(hostile_entries(sample)):
        story = Story()
        story.apply_signed(data, HOSTILE, PROOF_NUMBERS[number % len(PROOF_NUMBERS)])
        together.apply_signed(data, HOSTILE, 2**40 + number)
        if isinstance(sample, Level) and story.farm.state.level > SUPPORTED_LEVEL:
            continue  # the next level is valid, and a server of this version stops at it
        found += [f"{name}: {each}" for each in failures_of(story)]
    if not isinstance(sample, Level):
        found += [f"all together: {each}" for each in failures_of(together)]
    return found


def test_entry_kinds_all_have_samples() -> None:
    kinds = {each for each in get_args(Record) if each is not Foreign}
    assert {type(each) for each in SAMPLES} == kinds


@each_case("sample", SAMPLES, ids=lambda each: type(each).__name__)
def test_sample_entries_are_effective(sample: Record) -> None:
    story = Story()
    changes = story.apply_signed(encode(sample), HOSTILE)  # type: ignore[arg-type]  # as above
    assert not any(isinstance(each, EntryWithoutEffect | EntryTooEarly) for each in changes)
    assert story.farm.state.numbers[node_id(HOSTILE)].highest == story.numbers[HOSTILE]


@pytest.mark.search
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda each: type(each).__name__)
def test_entry_numbers_cannot_break_farm(sample: Record) -> None:
    assert failures_of_entries(sample) == []


REQUESTS = [
    *(f"client-{start}-{sequence}" for start in EXTREMES for sequence in EXTREMES),
    *(f"kafka:{producer}.{epoch}.{sequence}" for producer in (0, 2, 2**63) for epoch in (0, 1, 2**15 - 1, 2**31)
      for sequence in (0, 1, 2**31 - 1, 2**53)),
    *(f"zmq:{second:08x}{tail}" for second in (0, BASE_MS // 1000, 2**32 - 1) for tail in ("00" * 8, "ff" * 8)),
]  # fmt: skip


@pytest.mark.search
def test_request_numbers_cannot_break_farm() -> None:
    story = Story()
    story.append(ProducerStart("producer"))
    for number, request in enumerate(REQUESTS):
        story.apply_signed(json.dumps({"request": request}).encode(), HOSTILE, 2**40 + number)
    assert failures_of(story) == []


def test_era_without_step_bound_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the bound on the step of an era, the tests above fail."""

    def any_later(era: int, rekeying: Rekeying, level: int) -> str | None:
        del level
        return None if era > rekeying.era else "begun already"

    monkeypatch.setattr(eviction, "_objection_to_era", any_later)
    broken = failures_of_entries(KeyReplacement(1, ()))
    assert any(each.startswith("rekeying.era = 4294967295: ") for each in broken)


def test_era_out_of_range_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "_objection_to_era", lambda *_: None)
    story = Story()
    story.farm.state = replace(story.farm.state, rekeying=Rekeying(2**33))
    assert any("it is not stored" in each for each in failures_of(story))


def test_level_without_step_bound_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_machine, "may_raise", lambda *_: True)
    story = Story()
    story.apply_signed(encode(Level(2**16 - 1, "9.9.9")), HOSTILE)
    assert failures_of(story)
