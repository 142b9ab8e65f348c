"""Decoding of entries: the pipeline accepts the same entries as the farm, and its columns equal the decoded records.

Random entries of all kinds, most of them damaged, go through both decoders. The farm's decoder
(`bridge.wire.log.entries`) is the reference.
"""

import json
import os
from collections.abc import Iterator
from random import Random, randrange
from statistics import median_low
from typing import Any

import pytest

from bridge.core.log.hashes import hash_of
from bridge.core.log.kinds import kind_of
from bridge.core.log.records import Clock, Factors, Foreign, Publication, Record, Report, request_of
from bridge.wire.log.entries import decode
from bridge.wire.log.handover_entries import handover_in
from bridge.wire.log.proof import ends_like_proof
from pipeline.decode.columns import Row, record_batches
from pipeline.decode.entries import REFUSED, UNSIGNED
from pipeline.load_model import EPOCH_MS, LoadModel
from tests.pipeline.farm_log_server import destination, with_proof
from tests.simulation.garlic_farm_targets import JSON_PIECES

FEW, MANY = 5_000, 100_000
SEED_VARIABLE = "GARLICFARM_DECODE_SEED"
LEAF, OTHER = "a2" * 26, "b3" * 26
GOOD: tuple[dict[str, Any], ...] = (
    {"exclusion": {"hash": LEAF, "excluded": True}, "request": "o-1-1"},
    {"cost": {"hash": OTHER, "factor": 1.5}},
    {"force": {"master": destination("master")}},
    {"factors": {"throughIndex": 9, "formula": "f", "factors": {LEAF: 1.25, OTHER: 0.5}}},
    {"removal": {"server": 3, "removed": True}},
    {"correction": {"clock": EPOCH_MS}},
    {"level": {"number": 2, "version": "0.2"}},
    {"admission": {"server": 4, "node": "0123456789abcdef", "name": "node-4"}},
    {"rekeying": {"era": 2, "boxes": {}}},
    {"eviction": {"node": "0123456789abcdef", "era": 2, "boxes": {}}},
    {"handover": {"term": 7, "to": 2}, "request": "h-1-1"},
    {"kafkaProducer": {"name": "p-1"}},
    {"kafkaOffset": {"group": "g", "offset": 5}},
    {"clock": {"time": EPOCH_MS, "id": 1}},
    {
        "cluster": "farm",
        "date": 2**53 - 1,
        "id": 1,
        "router": {"attached": False, "jobLag": 5},
        "meta": [{"destination": destination("master"), "publishConfig": "off", "canSignUntil": 2**32 - 1}],
        "destinations": [
            {"destination": destination("a")},
            {"destination": destination("b"), "healthy": False, "currentTunnels": 3},
        ],
        "request": "r-1-1",
    },
    {
        "cluster": "farm",
        "date": EPOCH_MS,
        "id": 2,
        "router": {"attached": True},
        "remoteDestinations": [
            {"hash": LEAF, "reachable": True, "fetchTime": 700},
            {"hash": OTHER, "reachable": False, "fetchTime": 9_000},
            {"hash": "c4" * 26, "reachable": True, "fetchTime": 300},
        ],
        "remoteMetas": [{"hash": OTHER, "reachable": True, "fetchTime": 20}, {"hash": LEAF, "reachable": True}],
    },
)
REPORT_FIGURES = ("uptime_ms", "job_lag_ms", "attached", "masters", "publishing", "fetch_ms")
"""Figures of a report with the same name in its row."""


def bodies(random: Random, count: int) -> Iterator[bytes]:
    """Yield entries of a made-up farm and of each kind. Most are damaged: bytes are cut, doubled or inserted."""
    made = [entry.value for entry in LoadModel(5, 0.02, random.randrange(1_000)).entries() if entry.value is not None]
    good = [*made, *(json.dumps(entry).encode() for entry in GOOD)]
    for _ in range(count):
        body = random.choice(good if random.random() < 0.7 else good[-len(GOOD) :])
        early = random.random() < 0.6
        if early:
            body = damaged(random, body)
        if random.random() < 0.9:
            body = with_proof(body.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        if not early and random.random() < 0.5:
            body = damaged(random, body)
        yield body


def damaged(random: Random, body: bytes) -> bytes:
    """Return `body` with one to three small changes."""
    for _ in range(random.randint(1, 3)):
        begin = random.randrange(len(body) + 1)
        end = min(len(body), begin + random.choice((0, 1, 1, 2, 5, 60)))
        put = random.choice(
            (
                b"",
                random.choice(JSON_PIECES),
                bytes([random.randrange(256)]),
                str(random.choice((0, -1, 2**31, 2**32, 2**53, 2**63, 1e9, 100.5))).encode(),
                body[begin:end] * 2,
            )
        )
        body = body[:begin] + put + body[end:]
    return body


def lookup_times_ms(report: Report) -> list[int]:
    """Return the reported times of successful look-ups of other destinations."""
    measured = (*report.remote_destinations, *report.remote_metas)
    return [each.fetch_ms for each in measured if each.reachable and each.fetch_ms is not None]


def expected_columns(record: Record) -> dict[str, Any]:
    """Return the expected columns of a record, computed without the pipeline."""
    match record:
        case Report():
            return {
                "server_id": record.server_id,
                "request": record.request,
                "uptime_ms": record.router.uptime_ms,
                "job_lag_ms": record.router.job_lag_ms,
                "attached": record.router.attached,
                "masters": len(record.masters),
                "publishing": any(part.publishing for part in record.masters),
                "fetch_ms": median_low(took_ms) if (took_ms := lookup_times_ms(record)) else None,
                "leaves": [
                    (hash_of(leaf.destination), leaf.healthy, leaf.current_tunnels) for leaf in record.destinations
                ],
            }
        case Clock():
            return {"server_id": record.server_id, "period_ms": record.period_ms}
        case Publication():
            return {"server_id": record.server_id, "address": hash_of(record.master), "hash": record.content_hash}
        case Factors():
            return {"through": record.through_index, "factors": dict(record.factors), "request": record.request}
        case _:
            return {"request": request_of(record)}


def actual_columns(row: dict[str, Any]) -> dict[str, Any]:
    match row["entry"]:
        case "report":
            report, leaves = row["report"], row["destinations"]
            return {
                "server_id": row["server_id"],
                "request": row["request"],
                **{name: report[name] for name in REPORT_FIGURES},
                "leaves": [(leaf["address"], leaf["healthy"], leaf["current_tunnels"]) for leaf in leaves],
            }
        case "clock":
            return {"server_id": row["server_id"], "period_ms": row["clock"]["period_ms"]}
        case "publication":
            content = row["publication"]
            return {"server_id": row["server_id"], "address": content["address"], "hash": content["content_hash"]}
        case "factors":
            content = row["factors"]
            factors = dict(content["factors"])
            return {"through": content["through_index"], "factors": factors, "request": row["request"]}
        case _:
            return {"request": row["request"]}


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.soak)])
def test_entries_get_verdict_and_columns_of_farm_decoder(count: int) -> None:
    seed = int(os.environ.get(SEED_VARIABLE, "0")) or randrange(2**32)
    print(f"{count} entries, {SEED_VARIABLE}={seed}")  # noqa: T201 - to repeat a failure
    # given entries of all kinds, valid and invalid
    made = [*bodies(Random(seed), count)]
    rows: list[Row] = [(index, 1, "application", EPOCH_MS, body) for index, body in enumerate(made, 1)]
    # when the pipeline decodes them
    verdicts = {True: 0, False: 0}
    for batch in record_batches(rows, "farm"):
        for row in batch.to_pylist():
            body = made[row["index"] - 1]
            record = decode(body)
            order = handover_in(body)
            refused = isinstance(record, Foreign) and order is None
            # then it refuses exactly the entries that the farm ignores, and keeps their bytes
            if refused or not ends_like_proof(body):
                assert (row["entry"], row["body"]) == (REFUSED, body), (seed, body)
                assert refused or row["reason"] == UNSIGNED, (seed, body)
            else:
                kind = "handover" if isinstance(record, Foreign) else kind_of(record).name
                assert (row["entry"], row["body"], row["reason"]) == (kind, None, None), (seed, body)
                assert actual_columns(row) == expected_columns(record), (seed, body)
            verdicts[row["entry"] == REFUSED] += 1
    assert min(verdicts.values()) > count / 10, "both verdicts are frequent"
