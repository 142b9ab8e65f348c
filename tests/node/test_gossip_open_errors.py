"""Errors of `gossip.open_group`: always an immediate `ConfigError` with the given and the expected value."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields

import gossip
from gossip.core.member import Address
from gossip.node.settings import GroupSettings, unknown_names
from tests.effort import each_case
from tests.node.gossip_farm import in_simulated_time
from tests.node.gossip_network import MemoryNetwork

KEY = b"the group's secret, of 32 bytes."
HOME = Address("127.0.0.1", 7946)


@each_case(
    ("settings", "given", "expected"),
    [
        ({"key": b"short"}, "key has 5 bytes", "32"),
        ({"key": b""}, "key has 0 bytes", "32"),
        ({"key": KEY.decode()}, "key = str", "32 bytes, or a Keyring"),
        ({"key": bytearray(KEY)}, "key = bytearray", "32 bytes"),
        ({"key": None}, "farm key", "insecure"),
        ({"insecure": True}, "farm key", "insecure"),
        ({"insecure": 1}, "insecure = 1 (int)", "True or False"),
        ({"bind": "router.lan"}, "bind = 'router.lan'", "numeric host"),
        ({"bind": "127.0.0.1:7946"}, "bind = '127.0.0.1:7946'", "an Address with a port"),
        ({"bind": None}, "bind = None", "numeric host"),
        ({"bind": ("127.0.0.1", 7946)}, "bind = ('127.0.0.1', 7946)", "an Address with a port"),
        ({"bind": Address("127.0.0.1", "7946")}, "port='7946'", "a port from 0 to 65535"),  # type: ignore[arg-type]
        ({"bind": Address("127.0.0.1", 65_536)}, "port=65536", "a port from 0 to 65535"),
        ({"bind": Address("127.0.0.1", -1)}, "port=-1", "a port from 0 to 65535"),
        ({"bind": Address(None, 1)}, "host=None", "a host (text)"),  # type: ignore[arg-type]
        ({"bind": "8.8.8.8"}, "bind = 8.8.8.8:0", "allow_wan"),
        ({"advertise": "10.0.0.1:1"}, "advertise = '10.0.0.1:1' (str)", "an Address"),
        ({"advertise": Address("10.0.0.1", 0)}, "advertise = 10.0.0.1:0", "not 0"),
        ({"broadcast": Address("10.0.0.255", 0)}, "broadcast = 10.0.0.255:0", "not 0"),
        ({"broadcast": 7946}, "broadcast = 7946 (int)", "an Address"),
        ({"seeds": "10.0.0.2:7946"}, "seeds = '10.0.0.2:7946' (str)", "a tuple of texts"),
        ({"seeds": [HOME]}, "seeds = (Address", "a tuple of texts"),
        ({"seeds": (HOME,)}, "seeds = (Address", "a tuple of texts"),
        ({"seeds": ("10.0.0.2",)}, "seeds: '10.0.0.2'", "HOST:PORT"),
        ({"capacity": "5"}, "capacity = '5' (str)", "a whole number"),
        ({"capacity": True}, "capacity = True (bool)", "a whole number"),
        ({"capacity": 5.0}, "capacity = 5.0 (float)", "a whole number"),
        ({"capacity": 0}, "capacity = 0", "from 1"),
        ({"capacity": 1 << 40}, "capacity = 1099511627776", "from 1"),
        ({"metadata": "blue"}, "metadata = 'blue' (str)", "bytes"),
        ({"metadata": bytes(513)}, "metadata has 513 bytes", "512"),
        ({"options": "lan"}, "options = 'lan' (str)", "Options"),
        ({"state_directory": "/var/lib/x"}, "state_directory = '/var/lib/x' (str)", "a pathlib.Path"),
        ({"datagram_limit_bytes": 100}, "datagram_limit_bytes = 100", "from 1200"),
        ({"leave_linger_ms": -1}, "leave_linger_ms = -1", "from 0"),
        ({"leave_linger_ms": 10**30}, f"leave_linger_ms = {10**30}", "to 600000"),
        ({"network": 5}, "network = 5", "Network"),
        ({"random_seed": "x"}, "random_seed = 'x' (str)", "a whole number"),
        ({"interface": 2}, "interface = 2 (int)", "name of an interface"),
        ({"admit": None}, "admit = None (NoneType)", "a function"),
        ({"keyring_changed": 3}, "keyring_changed = 3 (int)", "a function"),
        ({"capacty": 5}, "capacty", "no such setting"),
    ],
)
def test_invalid_argument_is_refused_with_expected_value(settings: dict[str, Any], given: str, expected: str) -> None:
    with pytest.raises(gossip.ConfigError) as caught:
        gossip.open_group(**{"bind": HOME, "key": KEY, **settings})
    assert given in str(caught.value)
    assert expected in str(caught.value)
    assert KEY.decode() not in str(caught.value), "a key is never printed"


def test_settings_have_a_kind() -> None:
    assert unknown_names(each.name for each in fields(GroupSettings)) == []


@in_simulated_time
async def test_arguments_of_allowed_kinds_are_accepted(tmp_path: Path) -> None:
    async with gossip.open_group(
        HOME, key=gossip.Keyring.of(KEY), state_directory=tmp_path, network=MemoryNetwork()
    ) as group:
        assert group.info.address == HOME


@in_simulated_time
async def test_text_instead_of_bytes_is_refused_at_call() -> None:
    async with gossip.open_group(HOME, key=KEY, network=MemoryNetwork()) as group:
        text: Any = "text"
        for call in (group.set_metadata, lambda body: group.send_event("word", body)):
            with pytest.raises(TypeError, match="must be bytes, not str"):
                call(text)
        group.set_metadata(b"fine")


def test_seeds_may_be_a_list() -> None:
    gossip.open_group(HOME, key=KEY, seeds=["10.0.0.2:7946"])


@in_simulated_time
async def test_event_name_that_is_not_text_is_refused() -> None:
    async with gossip.open_group(HOME, key=KEY, network=MemoryNetwork()) as group:
        with pytest.raises(TypeError, match=r"must be text, not int"):
            group.send_event(5, b"")  # type: ignore[arg-type]
