"""The settings of `[zmq]`: the endpoint, its reach, and refused settings with the remedy."""

from pathlib import Path

import pytest

from bridge.node.settings.clients import ZmqSettings
from gossip import Address
from tests.effort import each_case
from tests.node.written_settings import load, problems

KEYS = 'keys = "zmq.keys"\n'


def test_settings_missing_without_table(tmp_path: Path) -> None:
    assert load(tmp_path, "").zmq is None


@pytest.mark.parametrize("listen", ["127.0.0.1:7670", "tcp://127.0.0.1:7670"])
def test_loopback_address_gives_read_only_endpoint(tmp_path: Path, listen: str) -> None:
    settings = load(tmp_path, f'[zmq]\nlisten = "{listen}"\n').zmq
    assert settings == ZmqSettings(listen=Address("127.0.0.1", 7670))
    assert settings.url == "tcp://127.0.0.1:7670"


def test_settings_are_all_loaded(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        '[zmq]\nlisten = "tcp://192.168.7.5:7670"\nallow_network = true\nwrite = true\nident = "farm"\n'
        'broadcast = "192.168.7.5:7671"\npeers = ["tcp://192.168.7.6:7670", "[fd00::1]:7670"]\n' + KEYS,
    ).zmq
    assert settings == ZmqSettings(
        listen=Address("192.168.7.5", 7670),
        allow_network=True,
        write=True,
        ident="farm",
        broadcast=Address("192.168.7.5", 7671),
        peers=("tcp://192.168.7.6:7670", "tcp://[fd00::1]:7670"),
        keys=tmp_path / "zmq.keys",
    )


@each_case(
    ("zmq", "message"),
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
def test_invalid_setting_named_in_error(tmp_path: Path, zmq: str, message: str) -> None:
    assert problems(tmp_path, f"[zmq]\n{zmq}").startswith(message)


def test_public_address_allowed_with_listed_keys(tmp_path: Path) -> None:
    settings = load(tmp_path, '[zmq]\nlisten = "203.0.114.5:7670"\nallow_network = true\n' + KEYS).zmq
    assert settings is not None
