"""The search for the closest floodfills, compared with a comparison of all pairs."""

import base64
import json
from datetime import date
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from pipeline import floodfills
from pipeline.cli.floodfills import hash_of, router_hashes
from pipeline.floodfills import SPEC, _rows, closest, keep, routing_key
from pipeline.source.log_client import FarmLogError
from pipeline.tables.files import DataFile, write_files
from tests.effort import over_seeds

DAY = date(2026, 1, 31)
VECTORS = Path(__file__).parents[1] / "vectors" / "meta-ls2.json"


def hashes(random: Random, count: int, prefix: bytes = b"") -> list[str]:
    return sorted((prefix + random.randbytes(32 - len(prefix))).hex() for _ in range(count))


def closest_by_full_comparison(destination: str, routers: list[str], count: int) -> list[str]:
    key = int.from_bytes(routing_key(bytes.fromhex(destination), DAY))
    return sorted(routers, key=lambda router: key ^ int(router, 16))[:count]


def test_routing_key_matches_recorded_vectors() -> None:
    vectors: dict[str, Any] = json.loads(VECTORS.read_text())
    name = bytes.fromhex(vectors["keys"]["dest_hash_hex"])
    assert vectors["routing_keys"]
    for day, expected in vectors["routing_keys"].items():
        utc_day = date(int(day[:4]), int(day[4:6]), int(day[6:]))
        assert routing_key(name, utc_day).hex() == expected


@over_seeds(8)
def test_prefix_search_equals_full_comparison(seed: int) -> None:
    random = Random(seed)
    count = random.choice((1, 3, 8))
    routers = hashes(random, random.choice((1, 2, 9, 500)))
    destinations = hashes(random, 40)
    found = _rows(destinations, routers, (DAY,), count)
    for destination in destinations:
        rows = sorted((each for each in found if each["destination"] == destination), key=itemgetter("rank"))
        routers_found, distances = [each["router"] for each in rows], [each["distance"] for each in rows]
        assert routers_found == closest_by_full_comparison(destination, routers, count), f"seed {seed}"
        assert distances == sorted(distances)


def test_routers_sharing_long_prefix_are_compared_to_last_bit() -> None:
    # given many routers close to one key, like in an attack
    random = Random(1)
    destination = hashes(random, 1)[0]
    near = routing_key(bytes.fromhex(destination), DAY)[:31]
    routers = sorted({*hashes(random, 60, near), *hashes(random, 200)})
    # when the closest routers are computed
    found = _rows([destination], routers, (DAY,), 5)
    # then the last byte decides the order
    assert [each["router"] for each in found] == closest_by_full_comparison(destination, routers, 5)


def test_fewer_routers_than_requested_are_all_returned() -> None:
    routers = hashes(Random(2), 3)
    assert len(_rows(["00" * 32], routers, (DAY,), 8)) == 3
    assert _rows(["00" * 32], [], (DAY,), 8) == []
    words = np.zeros((1, 4), np.uint64)
    assert [list(places) for places in closest(words, words, 4)] == [[0]]


def test_router_hashes_from_list_and_netdb_are_equal(tmp_path: Path) -> None:
    digest = sha256(b"a router").digest()
    in_base64 = base64.b64encode(digest, altchars=b"-~").decode()
    (tmp_path / "list").write_text(f"{digest.hex()}\n\n{in_base64}\n")
    (tmp_path / "netDb" / "rA").mkdir(parents=True)
    (tmp_path / "netDb" / "rA" / f"routerInfo-{in_base64}.dat").touch()
    assert router_hashes(tmp_path / "list") == router_hashes(tmp_path / "netDb") == [digest.hex()]
    (tmp_path / "bad").write_text("no hash\n")
    with pytest.raises(FarmLogError, match="'no hash' is not a router's hash"):
        router_hashes(tmp_path / "bad")
    address = base64.b32encode(digest).decode().lower().rstrip("=")
    assert hash_of(address) == digest.hex()


def test_kept_rows_are_readable_for_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def written(_: object, root: Path, schema: pa.Schema) -> list[DataFile]:
        return write_files(root, schema, schema.empty_table())

    monkeypatch.setattr(floodfills, "write_in_tasks", written)
    keep(tmp_path / "tables", cast("DataFrame", None))
    assert (tmp_path / "tables" / SPEC.name).stat().st_mode & 0o777 == 0o700
