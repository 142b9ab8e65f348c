"""The settings of `[kafka]`: access to the listener, and refused settings with the remedy."""

from pathlib import Path

import pytest

from bridge.node.settings.clients import KafkaPeer, KafkaSettings
from gossip import Address
from tests.effort import each_case
from tests.node.written_settings import load, problems

LOOPBACK = Address("127.0.0.1", 9092)
NETWORK = 'listen = "192.168.7.5:9092"\nallow_network = true\n'
PUBLIC = 'listen = "203.0.114.5:9092"\nallow_network = true\n'


def test_listener_is_absent_without_table(tmp_path: Path) -> None:
    assert load(tmp_path, "").kafka is None


def test_loopback_listener_needs_only_address_and_is_read_only(tmp_path: Path) -> None:
    found = load(tmp_path, '[kafka]\nlisten = "127.0.0.1:9092"\n').kafka
    assert found == KafkaSettings(listen=LOOPBACK, advertise=LOOPBACK)
    assert (found.topic, found.write, found.groups) == ("farm-log", False, False)


def test_file_with_all_settings_is_read(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        '[kafka]\nlisten = "0.0.0.0:9092"\nallow_network = true\nadvertise = "node-1.example:9092"\ntopic = "log"\n'
        'write = true\ngroups = true\npeers = ["two@node-2.example:9092", "3@[fd00::1]:9092"]\n'
        'certificate = "tls.pem"\nclient_ca = "ca.pem"\nusers = "users"\n',
    ).kafka
    assert found == KafkaSettings(
        listen=Address("0.0.0.0", 9092),  # noqa: S104 - compared, not bound
        advertise=Address("node-1.example", 9092),
        allow_network=True,
        topic="log",
        write=True,
        groups=True,
        peers=(KafkaPeer("two", Address("node-2.example", 9092)), KafkaPeer("3", Address("fd00::1", 9092))),
        certificate=tmp_path / "tls.pem",
        client_ca=tmp_path / "ca.pem",
        users=tmp_path / "users",
    )


@each_case(
    ("kafka", "message"),
    [
        ("write = false", "kafka.listen: missing"),
        ('listen = "node-1:9092"', "kafka.listen: 'node-1' is not a numeric address"),
        ('listen = "127.0.0.1"', "kafka.listen: "),
        ('listen = "127.0.0.1:9092"\nadvertise = "nowhere"', "kafka.advertise: 'nowhere': expected HOST:PORT"),
        ('listen = "127.0.0.1:9092"\ntopic = ".."', "kafka.topic: '..' is not the name of a topic"),
        ('listen = "127.0.0.1:9092"\ntopic = "farm log"', "kafka.topic: 'farm log' is not the name of a topic"),
        ('listen = "127.0.0.1:9092"\npeers = ["127.0.0.1:9092"]', "kafka.peers: '127.0.0.1:9092' is not NAME@host"),
        ('listen = "127.0.0.1:9092"\npeers = ["two@nowhere"]', "kafka.peers: 'nowhere': expected HOST:PORT"),
        ('listen = "127.0.0.1:9092"\npeers = ["2@a:1", "2@b:1"]', "kafka.peers: names a node twice"),
        ('listen = "127.0.0.1:9092"\nclient_ca = "ca.pem"', "kafka.client_ca: needs kafka.certificate"),
        ('listen = "127.0.0.1:9092"\nwrite = true', "kafka.write: true without users"),
        ('listen = "192.168.7.5:9092"', "kafka.listen: 192.168.7.5:9092 is not a loopback address"),
        ('listen = "0.0.0.0:9092"\nallow_network = true\nusers = "u"\ncertificate = "c"', "kafka.listen: 0.0.0.0:9092"),
        (NETWORK + 'write = true\nusers = "users"', "kafka.write: true on 192.168.7.5:9092 without TLS"),
        (PUBLIC + 'certificate = "tls.pem"', "kafka.listen: 203.0.114.5:9092 is a public address: list your clients"),
        (PUBLIC + 'users = "users"', "kafka.listen: 203.0.114.5:9092 is a public address, where others could read"),
    ],
)
def test_refused_setting_is_named_with_remedy(tmp_path: Path, kafka: str, message: str) -> None:
    assert problems(tmp_path, f"[kafka]\n{kafka}").startswith(message)


@pytest.mark.parametrize(
    "kafka", [NETWORK, PUBLIC + 'certificate = "c"\nusers = "u"', PUBLIC + 'certificate = "c"\nclient_ca = "ca"']
)
def test_network_is_readable_and_internet_needs_known_clients(tmp_path: Path, kafka: str) -> None:
    assert load(tmp_path, f"[kafka]\n{kafka}").kafka is not None
