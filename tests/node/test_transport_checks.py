"""The checks of `doctor` and of the running node for certificates, users and the proxy."""

import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bridge.api.alarms import CERTIFICATE, CONTROL_CERTIFICATE
from bridge.api.outputs import CheckResult
from bridge.node import client_endpoints
from bridge.node.doctor.transport_checks import transport_checks
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.security.certificates import show_validity, validity_of
from bridge.node.settings.configuration import load_configuration
from bridge.node.settings.machine import Machine, Network
from bridge.wire.keys.curve_key import to_z85
from bridge.wire.keys.scram_text import new_credential
from consensus.net.tls import load_or_create_certificate
from consensus.protocols.kafka import Mechanism
from gossip.node.discovery import LanInterface
from tests.i2p_proxy import LOOPBACK, I2pProxy
from tests.node.certificates import Authority, self_signed
from tests.node.test_users import private

LAN = LanInterface("eth0", "192.168.7.5", "192.168.7.255")


def checked(tmp_path: Path, settings: str) -> dict[str, tuple[CheckResult, str]]:
    file = tmp_path / "node.toml"
    file.write_text(f'farm_key = "k"\nstate_dir = "{tmp_path}"\n{settings}')
    machine = Machine("node", tmp_path, Network(lambda: [LAN], lambda: None))
    found = transport_checks(load_configuration(file, machine=machine))
    return {each.name: (each.result, f"{each.text}: {each.action}") for each in found}


def test_checks_of_node_without_state_are_empty(tmp_path: Path) -> None:
    assert checked(tmp_path, "") == {}


def test_own_certificate_is_read_without_checking_dates(tmp_path: Path) -> None:
    path = load_or_create_certificate(tmp_path).path
    assert checked(tmp_path, "")["certificate"][0] is CheckResult.OK
    path.write_bytes(b"rubbish")
    assert checked(tmp_path, "")["certificate"][0] is CheckResult.PROBLEM


@pytest.mark.parametrize(
    ("days", "result"),
    [
        ((-1, 90), CheckResult.OK),
        ((-1, 29), CheckResult.WARNING),
        ((-9, -1), CheckResult.PROBLEM),
        ((5_000, 6_000), CheckResult.PROBLEM),
    ],
)
def test_authority_signed_certificate_is_checked_by_both_dates(
    tmp_path: Path, days: tuple[int, int], result: CheckResult
) -> None:
    authority = Authority(tmp_path)
    path = authority.certificate(LOOPBACK, days=days).path
    found = checked(tmp_path, f'[consensus]\nca_file = "{authority.file}"\ncertificate = "{path}"')
    assert found["certificate"][0] is result
    assert (result is CheckResult.OK) != ("have the authority sign a new certificate" in found["certificate"][1])


def test_users_and_proxy_are_checked(tmp_path: Path) -> None:
    users = private(tmp_path / "users", "north:one")
    with I2pProxy({}) as proxy:
        by_i2p = (
            f'transport = "i2p"\n[consensus]\nadvertise = "farm.i2p:7669"\nusers_file = "{users}"\n'
            f'[proxy]\naddress = "{LOOPBACK}:{proxy.port}"'
        )
        assert {name: result for name, (result, _) in checked(tmp_path, by_i2p).items()} == {
            "users": CheckResult.OK,
            "proxy": CheckResult.OK,
        }
    private(users, "north")
    with socket.socket() as taken:
        # Bound and not listening, so that no other program can listen there.
        taken.bind((LOOPBACK, 0))
        found = checked(tmp_path, by_i2p.replace(f":{proxy.port}", f":{taken.getsockname()[1]}"))
    assert {name: result for name, (result, _) in found.items()} == {
        "users": CheckResult.PROBLEM,
        "proxy": CheckResult.PROBLEM,
    }
    assert "line 1" in found["users"][1]
    assert "HTTP client proxy" in found["proxy"][1]


@pytest.mark.parametrize(
    ("days", "kinds"), [((-1, 20), [CERTIFICATE.kind]), ((9, 90), [CERTIFICATE.kind]), ((-1, 90), [])]
)
def test_certificate_outside_its_dates_raises_alarm(tmp_path: Path, days: tuple[int, int], kinds: list[str]) -> None:
    alarms = Alarms(EventLog("node", lambda: 0))
    found = validity_of(self_signed(tmp_path, days=days), datetime.now(UTC))
    show_validity(found, alarms, CERTIFICATE)
    assert [each.kind for each in alarms.active()] == kinds
    show_validity(found, alarms, CONTROL_CERTIFICATE)
    assert [each.kind for each in alarms.active()] == [*kinds, *(f"control-{kind}" for kind in kinds)]


def test_zmq_endpoint_needs_extra_and_readable_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listen = '[zmq]\nlisten = "127.0.0.1:7670"\n'
    assert checked(tmp_path, listen)["zmq"] == (
        CheckResult.OK,
        "tcp://127.0.0.1:7670: any process of this machine may read, and not write: ",
    )
    networked = checked(tmp_path, '[zmq]\nlisten = "10.1.2.3:7670"\nallow_network = true\n')["zmq"][1]
    assert "any process of this machine or its network may read" in networked
    keys = private(tmp_path / "keys", "reader")
    found = checked(tmp_path, f'{listen}write = true\nkeys = "{keys}"\n')["zmq"]
    assert found[0] is CheckResult.PROBLEM
    assert "line 1: expected NAME KEY" in found[1]
    private(keys, f"reader {to_z85(bytes(32))} submit")
    assert "listed keys (1) may write" in checked(tmp_path, f'{listen}write = true\nkeys = "{keys}"\n')["zmq"][1]
    monkeypatch.setattr(client_endpoints, "find_spec", lambda _: None)
    found = checked(tmp_path, listen)["zmq"]
    assert found[0] is CheckResult.PROBLEM
    assert "pip install 'garlicfarm[zmq]'" in found[1]


def test_kafka_listener_needs_extra_and_readable_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listen = '[kafka]\nlisten = "127.0.0.1:9092"\n'
    assert checked(tmp_path, listen)["kafka"] == (
        CheckResult.OK,
        "127.0.0.1:9092: any process of this machine may read, and not produce: ",
    )
    networked = checked(tmp_path, '[kafka]\nlisten = "10.1.2.3:9092"\nallow_network = true\n')["kafka"][1]
    assert "any process of this machine or its network may read" in networked
    users = private(tmp_path / "users", "reader")
    written = f'{listen}write = true\nusers = "{users}"\n'
    found = checked(tmp_path, written)["kafka"]
    assert found[0] is CheckResult.PROBLEM
    assert "line 1: expected NAME CREDENTIAL" in found[1]
    private(users, f"reader {new_credential(Mechanism.SCRAM_SHA_512, 'x')} submit")
    assert "listed users (1) may produce" in checked(tmp_path, written)["kafka"][1]
    found = checked(tmp_path, f'{listen}certificate = "{tmp_path / "none.pem"}"\n')["kafka"]
    assert found[0] is CheckResult.PROBLEM
    assert "none.pem cannot be used" in found[1]
    monkeypatch.setattr(client_endpoints, "find_spec", lambda _: None)
    found = checked(tmp_path, listen)["kafka"]
    assert found[0] is CheckResult.PROBLEM
    assert "pip install 'garlicfarm[kafka]'" in found[1]
