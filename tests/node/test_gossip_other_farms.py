"""Gossip with another farm's key: its content is not read, and its senders are listed."""

from gossip.core.member import Address
from gossip.node.limits import OTHER_FARM_LISTED_MS, OTHER_FARMS_LIMIT, OtherFarms
from gossip.wire.seal import OVERHEAD_BYTES, VERSION, farm_named

LABEL = bytes.fromhex("77aa00ff77aa00ff")


def test_datagram_names_its_farm_unless_malformed() -> None:
    header = bytes((250, VERSION)) + LABEL
    assert farm_named(header + bytes(OVERHEAD_BYTES)) == LABEL
    for rubbish in (b"", header, bytes((1, VERSION)) + LABEL + bytes(200), bytes((250, 9)) + LABEL + bytes(200)):
        assert farm_named(rubbish) is None


def test_senders_are_listed_for_a_minute_in_bounded_memory() -> None:
    farms = OtherFarms()
    for number in range(3 * OTHER_FARMS_LIMIT):
        farms.record(Address(f"10.0.0.{number}", 7668), LABEL, number)
    assert len(farms.recent(100)) == OTHER_FARMS_LIMIT
    assert farms.recent(100 + OTHER_FARM_LISTED_MS) == ()
    farms.record(Address("10.0.0.1", 9), LABEL, 200_000)
    farms.record(Address("10.0.0.1", 10), LABEL, 200_001)
    assert [each.source for each in farms.recent(200_002)] == [Address("10.0.0.1", 10)]
