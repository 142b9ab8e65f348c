"""Settings that an agent refuses, the notation of endpoints, and limits per source."""

from collections import namedtuple
from errno import ENOTTY
from socket import AF_INET, AF_INET6
from typing import Any

import psutil
import pytest

from gossip.core.member import Address
from gossip.core.options import SwimOptions, TokenBucket
from gossip.node.discovery import Discovery, LanInterface, lan_interfaces
from gossip.node.endpoints import endpoint, is_private, numeric, parse_endpoint
from gossip.node.limits import SourceLimit
from gossip.node.settings import SEEDS_LIMIT, ConfigError, GroupSettings
from gossip.node.state_files import PEERS_REMEMBERED
from gossip.wire.codec import Code
from tests.effort import each_case
from tests.node.gossip_farm import RING
from tests.node.gossip_network import MemoryNetwork

HOME = Address("10.0.0.1", 7946)
EVERYWHERE = "0.0.0.0"  # noqa: S104 - no socket is bound to it; the tests only pass it to settings and checks


@each_case(
    ("settings", "message"),
    [
        ({"keyring": None}, "farm key"),
        ({"insecure": True}, "farm key"),
        ({"capacity": 0}, "capacity = 0"),
        ({"metadata": b"m" * 513}, "513 bytes, the limit is 512"),
        ({"seeds": ("10.0.0.2:1",) * 257}, "257 seeds"),
        ({"seeds": ("10.0.0.2",)}, "expected HOST:PORT"),
        ({"seeds": ("10.0.0.2:0",)}, "port must be a number"),
        ({"seeds": ("8.8.8.8:7946",)}, "8.8.8.8:7946 is not a private address"),
        ({"bind": Address("8.8.8.8", 7946)}, "bind = 8.8.8.8:7946 is not a private address"),
        ({"bind": Address(EVERYWHERE, 7946)}, "not a private address"),
        ({"bind": Address(EVERYWHERE, 7946), "allow_wan": True}, "set advertise"),
        ({"bind": Address("router.lan", 7946)}, "bind = router.lan:7946: expected a numeric address"),
        ({"bind": Address("fd00:0::1", 7946)}, "usual spelling"),
        ({"bind": Address("fe80::1%eth0", 7946)}, "numeric address"),
        ({"advertise": Address("8.8.8.8", 7946)}, "advertise"),
        ({"advertise": Address("::", 7946), "allow_wan": True}, "[::]:7946 is not the address of one machine"),
        ({"advertise": Address("239.0.0.1", 7946)}, "239.0.0.1:7946 is not the address of one machine"),
        ({"seeds": ("255.255.255.255:7946",)}, "255.255.255.255:7946 is not the address of one machine"),
        ({"broadcast": Address("8.8.8.255", 7946)}, "broadcast"),
        ({"datagram_limit_bytes": 100}, "datagram_limit_bytes = 100"),
    ],
)
def test_invalid_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GroupSettings(**{"bind": HOME, "keyring": RING, **settings})
    assert message in str(caught.value)


def test_core_has_room_for_seeds_and_stored_peers() -> None:
    assert SwimOptions().seeds_limit >= SEEDS_LIMIT + PEERS_REMEMBERED


def test_public_addresses_are_accepted_with_allow_wan() -> None:
    config = GroupSettings(
        bind=Address(EVERYWHERE, 7946),
        advertise=Address("8.8.8.8", 7946),
        seeds=("8.8.4.4:7946", "seed.example:7946"),
        keyring=RING,
        allow_wan=True,
    )
    assert config.advertise == Address("8.8.8.8", 7946)


def test_endpoints_have_one_spelling() -> None:
    assert parse_endpoint("seed.example:7946") == ("seed.example", 7946)
    assert parse_endpoint("[fd00::1]:7946") == ("fd00::1", 7946)
    assert endpoint(Address("fd00::1", 7946)) == "[fd00::1]:7946"
    assert endpoint(HOME) == "10.0.0.1:7946"
    for wrong in ("", ":1", "host", "host:", "host:x", "host:65536", "fd00::1:7946", "host:-1", "host:1.5"):
        with pytest.raises(ValueError, match=r"\S"):
            parse_endpoint(wrong)


def test_numeric_address_has_one_spelling() -> None:
    assert numeric("FD00:0:0::1") == "fd00::1"
    assert numeric("10.0.0.1") == "10.0.0.1"
    assert numeric("router.lan") is numeric("fe80::1%eth0") is None


def test_addresses_of_machine_or_link_or_site_are_private() -> None:
    private = ["127.0.0.1", "10.9.8.7", "172.16.0.1", "192.168.1.1", "169.254.1.1", "::1", "fd00::1", "255.255.255.255"]
    public = ["8.8.8.8", "172.32.0.1", "100.64.0.1", EVERYWHERE, "192.0.2.1", "2001:db8::1", "::", "router.lan"]
    assert all(is_private(host) for host in private)
    assert not any(is_private(host) for host in public)


def test_token_bucket_gives_burst_then_rate() -> None:
    bucket = TokenBucket(per_second=10, burst=3)
    assert [bucket.take(now_ms=0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(now_ms) for now_ms in (50, 100, 150, 200)] == [False, True, False, True]
    assert [bucket.take(now_ms=60_000) for _ in range(4)] == [True, True, True, False]


def test_source_limit_bounds_rate_of_each_source_and_of_all() -> None:
    limit = SourceLimit(per_second=1, burst=2, all_per_second=10, sources_limit=4)
    assert [limit.allows("10.0.0.1", 0) for _ in range(3)] == [True, True, False]
    assert limit.allows("10.0.0.2", 0)
    allowed = sum(limit.allows(f"10.0.1.{number}", 0) for number in range(200))
    assert allowed == 20 - 3
    assert len(limit.sources) == 4


def test_announcements_are_limited() -> None:
    target = Address("127.255.255.255", 7946)
    discovery = Discovery(target, MemoryNetwork().bind_broadcast(target, 1400))
    assert [discovery.may_announce(0) for _ in range(5)] == [True] * 4 + [False]
    assert discovery.is_presence(bytes([Code.BROADCAST, 1]))
    assert not discovery.is_presence(bytes([Code.JOIN_REQ]))
    assert not discovery.is_presence(b"")


def test_interfaces_without_known_state_count_as_up(monkeypatch: pytest.MonkeyPatch) -> None:
    link = namedtuple("link", "family address netmask")  # noqa: PYI024 - as psutil's own

    def unsupported() -> None:
        raise OSError(ENOTTY, "Inappropriate ioctl for device")

    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": [link(AF_INET, "10.1.2.3", "255.255.0.0")]})
    monkeypatch.setattr(psutil, "net_if_stats", unsupported)
    assert lan_interfaces() == [LanInterface("eth0", "10.1.2.3", "10.1.255.255", is_up=True)]


def test_lan_interfaces_omit_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    link = namedtuple("link", "family address netmask")  # noqa: PYI024 - as psutil's own
    state = namedtuple("state", "isup")  # noqa: PYI024 - as psutil's own
    addresses = {
        "lo": [link(AF_INET, "127.0.0.1", "255.0.0.0")],
        "eth0": [link(AF_INET, "192.168.7.5", "255.255.255.0"), link(AF_INET6, "fe80::1%eth0", "ffff::")],
        "eth1": [link(AF_INET, "10.1.2.3", "255.255.0.0")],
        "wan0": [link(AF_INET, "8.8.8.8", "255.255.255.0")],
        "tun0": [link(AF_INET, "10.8.0.2", "255.255.255.255")],
        "ula0": [link(AF_INET6, "fd00::5", "ffff:ffff:ffff:ffff::")],
        "down0": [link(AF_INET, "10.9.0.2", "255.255.255.0")],
        "bare0": [],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {name: state(name != "down0") for name in addresses})
    assert lan_interfaces() == [
        LanInterface("bare0", ""),
        LanInterface("down0", "10.9.0.2", "10.9.0.255", is_up=False),
        LanInterface("eth0", "192.168.7.5", "192.168.7.255"),
        LanInterface("eth0", "fe80::1"),
        LanInterface("eth1", "10.1.2.3", "10.1.255.255"),
        LanInterface("tun0", "10.8.0.2"),
        LanInterface("ula0", "fd00::5", "ff02::1"),
        LanInterface("wan0", "8.8.8.8", "8.8.8.255"),
    ]
