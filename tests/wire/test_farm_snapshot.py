"""A farm's snapshot: round trips, all older formats, and refused documents."""

from collections.abc import AsyncIterator
from hashlib import sha256
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from bridge.core.log.figures import FIGURES, RouterStatus
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import (
    ClientKey,
    ConditionStatus,
    CostFactor,
    Exclusion,
    Factors,
    Force,
    LeafFault,
    Measurement,
    Publication,
    ReportedDirectory,
    Scope,
)
from bridge.wire.log.snapshot import FarmSnapshot, FarmSnapshotError, decode_farm, encode_farm
from tests.spec.farm_stories import MASTER, Log, leaf, report


def eventful_log() -> Log:
    """Return the log of a farm whose state has an element of every kind."""
    log = Log()
    [part] = report(1).masters
    log.append(
        report(1, masters=(part, replace(part, destination="other")), destinations=(leaf("leaf01"), leaf("leaf05"))),
        report(2, masters=()),
    )
    log.clock(30_000)
    log.append(
        Exclusion(hash_of("leaf01"), excluded=True),
        CostFactor(hash_of("leaf02"), 2.5),
        Factors(3, "lag", {hash_of("leaf05"): 1.05}),
        Force(MASTER),
        ClientKey(b"a script", "script", bytes(32), (Scope.OPERATOR, Scope.WEIGHTS), admitted=True),
    )
    return log


def snapshot_of(log: Log) -> FarmSnapshot:
    return FarmSnapshot(log.farm.state, log.farm.tuning.period_ms, log.farm.sessions.dump())


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_reqids_are_empty_in_snapshot_without_them() -> None:
    snapshot = snapshot_of(eventful_log())
    snapshot.reqids = b"as they were dumped"
    [document] = encode_farm(snapshot)
    assert (await decode_farm(chunks(document))).reqids == b"as they were dumped"
    head = msgspec.msgpack.decode(document[4:])
    del head["reqids"]
    older = msgspec.msgpack.encode(head)
    assert (await decode_farm(chunks(len(older).to_bytes(4, "big") + older))).reqids == b""


async def test_snapshot_with_all_commands_round_trips() -> None:
    log = eventful_log()
    state = log.farm.state
    assert state.masters[MASTER].forced
    assert state.weights.excluded
    assert state.weights.costs
    assert state.weights.factors
    assert state.clients
    assert any(each.report for each in state.numbers.values())
    back = await decode_farm(chunks(*encode_farm(snapshot_of(log))))
    assert back.farm == state


def test_snapshot_has_recorded_bytes() -> None:
    """A restored state must be equal on servers of all versions, so each record keeps its names in MessagePack."""
    log = eventful_log()
    figures = dict(zip(FIGURES, (1, 2.5, 3, 4, 5, 6, 7.5, 8.5), strict=True))
    router = RouterStatus(attached=True, last_published_router_info="AAAA", **figures)  # type: ignore[arg-type]
    conditions = (ConditionStatus(LeafFault.SERVICE, 7, 2, "refused"),)
    failed = replace(leaf("leaf07"), faults=(LeafFault.SERVICE,), conditions=conditions)
    measured = (Measurement(hash_of("other"), reachable=True, fetch_ms=5),)
    directory = ReportedDirectory(hash_of("directory"), "no SAM")
    log.append(replace(report(2), router=router, destinations=(failed,), remote_metas=measured, directory=directory))
    state = log.farm.state
    published = replace(state.masters[MASTER], publication=Publication(MASTER, 1, 1_767_225_600, "c" * 43))
    farm = replace(state, level=5, masters={**state.masters, MASTER: published})
    [document] = encode_farm(FarmSnapshot(farm, log.farm.tuning.period_ms, log.farm.sessions.dump()))
    assert sha256(document).hexdigest() == "b1e25b1271a7d79b270336d2e44898e72decd4943e31414dbe24c18bd751d528"


async def test_snapshot_of_version_without_directories_is_read() -> None:
    log = eventful_log()
    [document] = encode_farm(snapshot_of(log))
    head: dict[str, Any] = msgspec.msgpack.decode(document[4:])
    for server in head["farm"]["servers"].values():
        assert server["report"].pop("directory") is None
        for each in server["report"]["destinations"]:
            assert each.pop("conditions") == []
        server["report"]["of a later version"] = {"hash": "x"}
    data = msgspec.msgpack.encode(head)
    assert (await decode_farm(chunks(len(data).to_bytes(4) + data))).farm == log.farm.state


def in_first_format(log: Log) -> bytes:
    """Return the same state in the first format: one master, and no weights."""
    [document] = encode_farm(snapshot_of(log))
    head: dict[str, Any] = msgspec.msgpack.decode(document[4:])
    head["version"] = 1
    del head["farm"]["weights"]
    for server in head["farm"]["servers"].values():
        masters = server["report"].pop("masters")
        server["report"]["meta"] = masters[0] if masters else None
    for master in head["farm"]["masters"].values():
        del master["forced"]
    data = msgspec.msgpack.encode(head)
    return len(data).to_bytes(4) + data


async def test_snapshot_of_first_format_is_read() -> None:
    log = Log(report(1), report(2, masters=()))
    log.clock(30_000)
    back = await decode_farm(chunks(in_first_format(log)))
    assert back.farm == log.farm.state


async def test_snapshot_of_format_without_proofs_is_read() -> None:
    log = eventful_log()
    [document] = encode_farm(snapshot_of(log))
    head: dict[str, Any] = msgspec.msgpack.decode(document[4:])
    head["version"] = 2
    del head["farm"]["clients"], head["farm"]["numbers"]
    for admitted in head["farm"]["admitted"].values():
        del admitted["entry"]
    data = msgspec.msgpack.encode(head)
    back = await decode_farm(chunks(len(data).to_bytes(4) + data))
    assert back.farm == replace(log.farm.state, clients={}, numbers={})


async def test_snapshot_of_later_format_is_refused() -> None:
    [document] = encode_farm(snapshot_of(eventful_log()))
    head: dict[str, Any] = msgspec.msgpack.decode(document[4:])
    data = msgspec.msgpack.encode(head | {"version": 9, "farm": "of another shape"})
    with pytest.raises(FarmSnapshotError, match="format 9; this version reads formats 1 to 3"):
        await decode_farm(chunks(len(data).to_bytes(4) + data))


@pytest.mark.parametrize("farm", [None, {"servers": None}, {"servers": {1: None}}, {"servers": {1: {}}}])
async def test_snapshot_with_invalid_farm_is_refused(farm: object) -> None:
    data = msgspec.msgpack.encode({"version": 1, "farm": farm, "period_ms": 1, "sessions": b""})
    with pytest.raises(FarmSnapshotError, match="another version"):
        await decode_farm(chunks(len(data).to_bytes(4) + data))


async def test_snapshot_with_unequal_history_is_refused() -> None:
    history = {"moment_indexes": [1, 2], "moment_times_ms": [1_000], "configuration_indexes": []}
    data = msgspec.msgpack.encode(history)
    with pytest.raises(FarmSnapshotError, match="its history of log time is incomplete"):
        await decode_farm(chunks(*encode_farm(snapshot_of(eventful_log())), len(data).to_bytes(4), data))


@pytest.mark.parametrize("seed", range(3))
async def test_mutated_snapshot_is_read_or_refused(seed: int) -> None:
    random, whole = Random(seed), b"".join(encode_farm(snapshot_of(eventful_log())))
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        try:
            await decode_farm(chunks(bytes(damaged)))
        except FarmSnapshotError:
            refused += 1
    assert refused > 0, f"seed {seed}"


@pytest.mark.parametrize(
    "document",
    [
        b"\x91" * 100_000,
        b"\x81\xa1\xff\xc0",
        msgspec.msgpack.encode({"version": 1, "farm": {"servers": {"1": 1.5}}}),
        msgspec.msgpack.encode({"version": 1, "farm": {"servers": {"1": {"report": "text"}}}}),
    ],
)
async def test_snapshot_of_another_shape_is_refused(document: bytes) -> None:
    with pytest.raises(FarmSnapshotError):
        await decode_farm(chunks(len(document).to_bytes(4), document))
