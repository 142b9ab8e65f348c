"""The closest floodfills of three days: by the routing key of each day and XOR, among the routers that are given."""

from datetime import date, timedelta
from hashlib import sha256
from random import Random

import pytest

from bridge.wire.i2p.floodfills import closest_floodfills

DAY = date(2026, 1, 1)
TARGET = sha256(b"a destination").digest()


def by_hand(target: bytes, routers: set[bytes], yyyymmdd: bytes) -> list[bytes]:
    """All routers in order of distance, byte by byte instead of as numbers."""
    routing = sha256(target + yyyymmdd).digest()
    return sorted(routers, key=lambda router: bytes(a ^ b for a, b in zip(routing, router, strict=True)))


@pytest.mark.parametrize("seed", range(5))
def test_the_closest_of_each_day_are_those_that_xor_by_hand_finds(seed: int) -> None:
    random = Random(seed)
    routers = {random.randbytes(32) for _ in range(random.randint(5, 300))}
    found = closest_floodfills(TARGET, routers, DAY)
    assert list(found.yesterday) == by_hand(TARGET, routers, b"20251231")[:4], f"seed {seed}"
    assert list(found.today) == by_hand(TARGET, routers, b"20260101")[:4], f"seed {seed}"
    assert list(found.tomorrow) == by_hand(TARGET, routers, b"20260102")[:4], f"seed {seed}"


def test_tomorrow_is_the_next_days_today() -> None:
    routers = [sha256(bytes([number])).digest() for number in range(50)]
    today, next_day = (closest_floodfills(TARGET, routers, DAY + timedelta(days=days)) for days in (0, 1))
    assert today.tomorrow == next_day.today
    assert today.today == next_day.yesterday
    assert today.today != today.tomorrow, "the keys move at midnight"


def test_fewer_routers_than_are_asked_for_are_all_there_is_and_none_is_none() -> None:
    routers = [sha256(bytes([number])).digest() for number in range(3)]
    assert set(closest_floodfills(TARGET, routers, DAY, count=8).today) == set(routers)
    assert closest_floodfills(TARGET, (), DAY).today == ()
