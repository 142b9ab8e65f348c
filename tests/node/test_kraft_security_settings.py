"""TLS and SASL of a KRaft server under Kafka's names: each setting has an effect, or is refused by its name."""

from pathlib import Path

import pytest

from consensus.protocols.kafka.wire.limits import KafkaWireError
from consensus.protocols.kafka.wire.scram import Mechanism, ScramUsers
from consensus.protocols.kraft.operators.quorum_directory import (
    USERS_FILE,
    QuorumDirectoryError,
    decode_users,
    encode_users,
    format_directory,
)
from consensus.protocols.kraft.operators.security_settings import (
    scram_users,
    server_security,
    split_settings,
    tool_security,
)
from consensus.protocols.kraft.operators.settings import SettingsError, parse_properties, voter_settings
from tests.effort import each_case

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="q" password="p w";'
USERS = ScramUsers(scram_users(["SCRAM-SHA-512=[name=q,password=p w]"]))
SASL = {
    "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT",
    "sasl.mechanism.controller.protocol": "SCRAM-SHA-512",
    "sasl.jaas.config": JAAS,
}


def test_security_settings_are_separated_by_name() -> None:
    lines = (
        "node.id=1\nssl.client.auth=none\nsasl.jaas.config=x\nlistener.name.a.b=c\nlistener.security.protocol.map=\n"
    )
    secured, others = split_settings(parse_properties(lines))
    assert list(others) == ["node.id"]
    assert len(secured) == 4


def test_listener_is_plaintext_by_default() -> None:
    """The usual entries in Kafka's protocol map do not change this."""
    for text in ("", "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL"):
        security = server_security({"listener.security.protocol.map": text}, "CONTROLLER", None)
        assert (security.listener.tls, security.listener.credentials, security.client.login) == (None, None, None)
        assert not security.authenticates


@pytest.mark.parametrize("prefix", ["", "listener.name.controller.", "listener.name.controller.scram-sha-512."])
def test_server_logs_in_by_its_listener_settings(prefix: str) -> None:
    """The login may belong to the listener or to its mechanism, as in Kafka."""
    settings = {name: text for name, text in SASL.items() if name != "sasl.jaas.config"}
    security = server_security({**settings, f"{prefix}sasl.jaas.config": JAAS}, "CONTROLLER", USERS)
    assert security.authenticates
    assert security.listener.mechanisms == tuple(Mechanism)
    login = security.client.login
    assert login is not None
    assert (login.user, login.password, login.mechanism) == ("q", "p w", Mechanism.SCRAM_SHA_512)
    assert "p w" not in repr(security)


def test_login_for_another_mechanism_is_refused() -> None:
    """Kafka does not use a login for another mechanism either."""
    name = "listener.name.controller.scram-sha-256.sasl.jaas.config"
    settings = {name: JAAS, **{each: text for each, text in SASL.items() if each != "sasl.jaas.config"}}
    with pytest.raises(SettingsError, match=r"scram-sha-256.* is for another mechanism than .*=SCRAM-SHA-512"):
        server_security(settings, "CONTROLLER", USERS)


@each_case(
    ("more", "message"),
    [
        ({"ssl.keystore.location": "x"}, "SASL_PLAINTEXT ignores ssl.keystore.location"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, "sasl.enabled.mechanisms has the mechanism 'PLAIN'"),
        ({"sasl.mechanism.controller.protocol": "GSSAPI"}, "controller.protocol has the mechanism 'GSSAPI'"),
        ({"sasl.jaas.config": "x"}, "sasl.jaas.config must be"),
        ({"sasl.kerberos.service.name": "x"}, "sasl.kerberos.service.name is not a setting"),
        ({"ssl.protocol": "TLSv1.2"}, "ssl.protocol is not a setting"),
        ({"listener.name.other.sasl.jaas.config": JAAS}, "listener.name.other.sasl.jaas.config"),
        ({"listener.name.controller.sasl.jaas.config": JAAS}, "sets sasl.jaas.config of the listener CONTROLLER again"),
        ({"listener.security.protocol.map": "CONTROLLER:TLS"}, "listener.security.protocol.map has 'CONTROLLER:TLS'"),
        ({"listener.security.protocol.map": "OTHER:SSL"}, "does not have the listener CONTROLLER"),
        ({"listener.security.protocol.map": "CONTROLLER:SSL"}, "SSL ignores sasl.jaas.config"),
    ],
)
def test_ineffective_or_invalid_setting_is_refused_by_name(more: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message.replace(".", r"\.")):
        server_security(SASL | more, "CONTROLLER", USERS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs ssl.keystore.location and ssl.truststore.location"),
        ({"ssl.keystore.location": "x"}, "set ssl.keystore.type=PEM"),
        ({"ssl.truststore.type": "PEM"}, "ssl.truststore.type needs ssl.truststore.location"),
        ({"ssl.client.auth": "requested"}, "ssl.client.auth is 'requested'"),
    ],
)
def test_tls_needs_pem_files(settings: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message.replace(".", r"\.")):
        server_security({"listener.security.protocol.map": "A:SSL", **settings}, "A", None)


def test_sasl_needs_users_in_directory() -> None:
    with pytest.raises(SettingsError, match="--add-scram"):
        server_security(SASL, "CONTROLLER", None)


def test_tool_uses_kafka_tool_settings() -> None:
    """The settings are `security.protocol` and `sasl.mechanism`, as for Kafka's tools."""
    login = tool_security(
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": JAAS}
    ).login
    assert login is not None
    assert login.mechanism is Mechanism.SCRAM_SHA_256
    for settings, message in (
        ({"security.protocol": "X"}, "security.protocol"),
        ({"ssl.truststore.location": "x"}, "PLAINTEXT ignores ssl.truststore.location"),
        ({"ssl.client.auth": "none"}, "ssl.client.auth is not a setting of this command"),
        ({"security.protocol": "SSL"}, "needs ssl.truststore.location"),
    ):
        with pytest.raises(SettingsError, match=message.replace(".", r"\.")):
            tool_security(settings)


@pytest.mark.parametrize("text", ["[name=\udcff,password=s]", "[name=a,password=\udcff]"])
def test_user_with_bytes_outside_utf8_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="user 1 has bytes that are not UTF-8"):
        scram_users([f"SCRAM-SHA-256={text}"])


def test_users_file_is_private_without_passwords(tmp_path: Path) -> None:
    settings = voter_settings({"node.id": "1", "log.dirs": str(tmp_path), "controller.quorum.voters": "1@a:1"})
    users = scram_users(["SCRAM-SHA-256=[name=a,password=secret,iterations=5000]", "SCRAM-SHA-512=[name=a,password=s]"])
    directory = format_directory(settings, "AAAAAAAAAAAAAAAAAAAAAQ", users=users)
    file = tmp_path / USERS_FILE
    assert b"secret" not in file.read_bytes()
    assert file.stat().st_mode & 0o077 == 0
    found = directory.read_users()
    assert found is not None
    assert {kind: found.scram(kind, "a") for kind in Mechanism} == users["a"]
    assert found.scram(Mechanism.SCRAM_SHA_256, "b") is None
    file.write_bytes(b"{")
    with pytest.raises(QuorumDirectoryError, match=USERS_FILE):
        directory.read_users()


@each_case("data", [b"", b"[]", b'{"a":1}', b'{"a":{"PLAIN":{}}}', b'{"a":{"SCRAM-SHA-256":{"salt":1}}}'])
def test_other_bytes_are_not_users(data: bytes) -> None:
    with pytest.raises(KafkaWireError):
        decode_users(data)


def test_empty_users_are_an_empty_object() -> None:
    assert encode_users({}) == b"{}"


@each_case(
    "text",
    ["x", "PLAIN=[name=a,password=secret]", "SCRAM-SHA-512=[password=secret]", "SCRAM-SHA-512=[name=a]"]
    + [f"SCRAM-SHA-512=[name=a,password=secret,{more}]" for more in ("salt=1", "iterations=1", "iterations=x")],
)
def test_invalid_user_error_does_not_show_password(text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        scram_users([text])
    assert "secret" not in str(refused.value)
