"""The settings of `[zmq]`: what opens the endpoint, how far, and what is refused with what to do."""

from pathlib import Path

import pytest

from bridge.node.settings.clients import ZmqSettings
from bridge.node.settings.configuration import ConfigurationError, load_configuration
from bridge.node.settings.machine import Machine, Network
from gossip import Address
from gossip.node.discovery import LanInterface

LAN = LanInterface("eth0", "192.168.7.5", "192.168.7.255")
KEYS = 'keys = "zmq.keys"\n'


def load(tmp_path: Path, zmq: str) -> ZmqSettings | None:
    file = tmp_path / "node.toml"
    file.write_text(f'farm_key = "farm.key"\n{zmq}')
    machine = Machine("router", tmp_path / "state", Network(lambda: [LAN], lambda: None))
    return load_configuration(file, None, machine).zmq


def problems(tmp_path: Path, zmq: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, f"[zmq]\n{zmq}")
    return str(caught.value).replace(f"{tmp_path / 'node.toml'}: ", "")


def test_without_the_table_there_is_no_endpoint(tmp_path: Path) -> None:
    assert load(tmp_path, "") is None


@pytest.mark.parametrize("listen", ["127.0.0.1:7670", "tcp://127.0.0.1:7670"])
def test_on_loopback_the_address_is_enough_and_no_client_writes(tmp_path: Path, listen: str) -> None:
    found = load(tmp_path, f'[zmq]\nlisten = "{listen}"\n')
    assert found == ZmqSettings(listen=Address("127.0.0.1", 7670))
    assert found.url == "tcp://127.0.0.1:7670"


def test_all_of_it(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        '[zmq]\nlisten = "tcp://192.168.7.5:7670"\nallow_network = true\nwrite = true\nident = "farm"\n'
        'broadcast = "192.168.7.5:7671"\npeers = ["tcp://192.168.7.6:7670", "[fd00::1]:7670"]\n' + KEYS,
    )
    assert found == ZmqSettings(
        listen=Address("192.168.7.5", 7670),
        allow_network=True,
        write=True,
        ident="farm",
        broadcast=Address("192.168.7.5", 7671),
        peers=("tcp://192.168.7.6:7670", "tcp://[fd00::1]:7670"),
        keys=tmp_path / "zmq.keys",
    )


@pytest.mark.parametrize(
    ("zmq", "told"),
    [
        ("write = false", "zmq.listen: missing"),
        ('listen = "node-1:7670"', "zmq.listen: 'node-1:7670' is not tcp://IP:port"),
        ('listen = "127.0.0.1"', "zmq.listen: "),
        ('listen = "ipc://somewhere"', "zmq.listen: "),
        ('listen = "192.168.7.5:7670"', "zmq.listen: 192.168.7.5:7670 is not a loopback address"),
        ('listen = "127.0.0.1:7670"\nbroadcast = "192.168.7.5:7671"', "zmq.broadcast: 192.168.7.5:7671 is not a loop"),
        ('listen = "0.0.0.0:7670"\nallow_network = true', "zmq.listen: 0.0.0.0:7670 listens on every interface"),
        ('listen = "203.0.114.5:7670"\nallow_network = true', "zmq.listen: 203.0.114.5:7670 is a public address"),
        ('listen = "127.0.0.1:7670"\nwrite = true', "zmq.write: true without keys"),
        ('listen = "127.0.0.1:7670"\npeers = ["nowhere"]', "zmq.peers: "),
        (f'listen = "127.0.0.1:7670"\nident = "{"x" * 256}"', "zmq.ident: 256 bytes"),
    ],
)
def test_what_is_refused_is_named_with_what_to_do(tmp_path: Path, zmq: str, told: str) -> None:
    assert problems(tmp_path, zmq).startswith(told)


def test_listed_keys_open_a_public_address(tmp_path: Path) -> None:
    found = load(tmp_path, '[zmq]\nlisten = "203.0.114.5:7670"\nallow_network = true\n' + KEYS)
    assert found is not None
