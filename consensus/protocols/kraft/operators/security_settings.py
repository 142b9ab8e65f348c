"""TLS and SASL of a KRaft server and of its tools, under Kafka's names.

    listener.security.protocol.map ─▶ PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL of the listener
      SSL    ssl.keystore.type=PEM     ssl.keystore.location      certificate, chain and key in one file
             ssl.truststore.type=PEM   ssl.truststore.location    the authorities of the other servers and of clients
             ssl.client.auth           none, or required
      SASL   sasl.enabled.mechanisms                SCRAM-SHA-256, SCRAM-SHA-512
             sasl.mechanism.controller.protocol     this server's mechanism for its login at the others
             sasl.jaas.config                       … and its user name and password

As in Kafka, a name may begin with the name of the listener in lower case, and `sasl.jaas.config` also with a mechanism:
`listener.name.controller.ssl.client.auth`, `listener.name.controller.scram-sha-512.sasl.jaas.config`. A tool does not
have a listener. Its settings are `security.protocol`, the stores, `sasl.mechanism` and `sasl.jaas.config`.

*Settings without effect.* A setting that the protocol ignores is refused: a keystore for a listener without TLS is a
mistake. Stores are PEM files, which is not Kafka's default, so the type must be set: then the same settings have the
same meaning in Kafka. TLS is always 1.3 and host names are always checked, so settings for these do not exist.

*Users.* Kafka stores the users of SCRAM in its metadata, which this server does not interpret. Here they are in a file
of the server's directory, made by `format --add-scram` (`quorum_directory`).
"""

import re
from collections.abc import Iterable, Mapping
from os import urandom
from pathlib import Path
from typing import Final

from msgspec import Struct

from consensus.net.tls import authority_context, server_context
from consensus.protocols.kafka.connections.security import (
    ClientSecurity,
    ListenerSecurity,
    Login,
)
from consensus.protocols.kafka.wire.scram import (
    MIN_ITERATIONS,
    Mechanism,
    ScramCredential,
    UserSource,
    scram_credential,
)
from consensus.protocols.kraft.operators.settings import SettingsError

PROTOCOL_MAP: Final = "listener.security.protocol.map"
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_STORES: Final = frozenset(
    {"ssl.keystore.type", "ssl.keystore.location", "ssl.truststore.type", "ssl.truststore.location"}
)
_LOGIN: Final = "sasl.jaas.config"
_OF_SSL: Final = _STORES | {"ssl.client.auth"}
_OWN_MECHANISM: Final = "sasl.mechanism.controller.protocol"
_OF_SASL: Final = frozenset({"sasl.enabled.mechanisms", _OWN_MECHANISM, _LOGIN})
_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_JAAS: Final = re.compile(rf"{re.escape(_MODULE)}\s+required((?:\s+[A-Za-z.]+=\"[^\"]*\")*)\s*;")
_ADDED: Final = re.compile(r"([A-Z0-9-]+)=\[(.*)\]")
_SALT_BYTES: Final = 16
_OPTION: Final = re.compile(r"([A-Za-z.]+)=\"([^\"]*)\"")


class ServerSecurity(Struct, frozen=True):
    """A server's requirements for its clients, and its own login at others."""

    listener: ListenerSecurity
    client: ClientSecurity

    @property
    def authenticates(self) -> bool:
        """Return True if the listener refuses unauthenticated clients."""
        tls = self.listener.tls
        return self.listener.credentials is not None or (tls is not None and bool(tls.verify_mode))


def split_settings(settings: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of TLS and SASL, and the others."""
    security = {name: text for name, text in settings.items() if name.startswith(("ssl.", "sasl.", "listener.name."))}
    if PROTOCOL_MAP in settings:
        security[PROTOCOL_MAP] = settings[PROTOCOL_MAP]
    return security, {name: text for name, text in settings.items() if name not in security}


def server_security(settings: Mapping[str, str], listener: str, users: UserSource | None) -> ServerSecurity:
    """Return the security of the listener with this name; `users` may log in if its protocol has SASL.

    Raises `SettingsError`, and `CertificateError` for a file that cannot be used.
    """
    protocol = _protocol_of(settings.get(PROTOCOL_MAP, ""), listener)
    own = _of_listener({name: text for name, text in settings.items() if name != PROTOCOL_MAP}, listener)
    _check_effect(own, protocol, _OF_SSL, _OF_SASL)
    listening, client = ListenerSecurity(), ClientSecurity()
    if protocol.endswith("SSL"):
        keystore, truststore = _stores(own)
        asks = _one_of(own, "ssl.client.auth", ("none", "required"), "none") == "required"
        if keystore is None or truststore is None:
            raise SettingsError(f"{protocol} needs ssl.keystore.location and ssl.truststore.location: add them")
        listening = ListenerSecurity(server_context(keystore, truststore if asks else None))
        client = ClientSecurity(authority_context(truststore, keystore))
    if protocol.startswith("SASL"):
        if users is None:
            raise SettingsError(f"{protocol} needs users: format the directory with --add-scram")
        named = own.get("sasl.enabled.mechanisms", ",".join(each.value for each in Mechanism))
        enabled = tuple(_mechanism("sasl.enabled.mechanisms", name.strip()) for name in named.split(","))
        listening = ListenerSecurity(listening.tls, users, enabled)
        client = ClientSecurity(client.tls, _login(own, _OWN_MECHANISM))
    return ServerSecurity(listening, client)


def tool_security(settings: Mapping[str, str]) -> ClientSecurity:
    """Return the security of a tool, from `security.protocol`. Raises `SettingsError` and `CertificateError`."""
    own = dict(settings)
    protocol = _one_of(own, "security.protocol", _PROTOCOLS, "PLAINTEXT")
    own.pop("security.protocol", None)
    of_sasl = frozenset({"sasl.mechanism", _LOGIN})
    unknown = sorted(own.keys() - _STORES - of_sasl)
    if unknown:
        raise SettingsError(f"{unknown[0]} is not a setting of this command: remove it")
    _check_effect(own, protocol, _STORES, of_sasl)
    security = ClientSecurity()
    if protocol.endswith("SSL"):
        keystore, truststore = _stores(own)
        if truststore is None:
            raise SettingsError(f"{protocol} needs ssl.truststore.location: add it")
        security = ClientSecurity(authority_context(truststore, keystore))
    if protocol.startswith("SASL"):
        security = ClientSecurity(security.tls, _login(own, "sasl.mechanism"))
    return security


def scram_users(added: Iterable[str]) -> dict[str, dict[Mechanism, ScramCredential]]:
    """Parse users in the form of `kafka-storage format --add-scram`: `SCRAM-SHA-512=[name=…,password=…,iterations=…]`.

    The credentials do not reveal the password. Raises `SettingsError`, whose text does not contain the password.
    """
    users: dict[str, dict[Mechanism, ScramCredential]] = {}
    for number, text in enumerate(added, 1):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SettingsError(
                f"user {number} has bytes that are not UTF-8: write name and password in UTF-8"
            ) from None
        found = _ADDED.fullmatch(text.strip())
        options = dict(part.strip().partition("=")[::2] for part in found[2].split(",")) if found is not None else {}
        if found is None or not {"name", "password"} <= options.keys() <= {"name", "password", "iterations"}:
            raise SettingsError(f"write user {number} as SCRAM-SHA-512=[name=NAME,password=PASSWORD,iterations=4096]")
        mechanism = _mechanism(f"user {options['name']}", found[1])
        try:
            iterations = int(options.get("iterations", MIN_ITERATIONS))
            credential = scram_credential(mechanism, options["password"], urandom(_SALT_BYTES), iterations)
        except ValueError as error:
            raise SettingsError(f"user {options['name']} cannot be added: {error}") from error
        users.setdefault(options["name"], {})[mechanism] = credential
    return users


def _protocol_of(text: str, listener: str) -> str:
    protocols = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = part.partition(":")
        if not colon or protocol not in _PROTOCOLS:
            raise SettingsError(
                f"{PROTOCOL_MAP} has {part!r}: write NAME:PROTOCOL, with one of {', '.join(_PROTOCOLS)}"
            )
        protocols[name] = protocol
    if listener in protocols:
        return protocols[listener]
    if text:
        raise SettingsError(f"{PROTOCOL_MAP} does not have the listener {listener}: add {listener}:PLAINTEXT")
    return listener if listener in _PROTOCOLS else "PLAINTEXT"


def _of_listener(settings: Mapping[str, str], listener: str) -> dict[str, str]:
    """Return the settings under their names without listener and mechanism.

    Raises `SettingsError` for an unknown setting, mechanism or listener, and for a setting that occurs twice.
    """
    prefix, own = f"listener.name.{listener.lower()}.", dict[str, str]()
    logins = dict[str, Mechanism]()
    for name, text in settings.items():
        bare = name.removeprefix(prefix)
        if bare.endswith(f".{_LOGIN}"):
            logins[name] = _mechanism(name, bare.removesuffix(f".{_LOGIN}").upper())
            bare = _LOGIN
        if bare not in _OF_SSL | _OF_SASL:
            known = ", ".join(sorted(_OF_SSL | _OF_SASL))
            raise SettingsError(
                f"{name} is not a setting of this server's listener {listener}: remove it. The settings are {known}"
            )
        if bare in own:
            raise SettingsError(f"{name} sets {bare} of the listener {listener} again: keep only one of the two lines")
        own[bare] = text
    used = own.get(_OWN_MECHANISM)
    for name, mechanism in logins.items():
        if used not in {None, mechanism.value}:
            raise SettingsError(f"{name} is for another mechanism than {_OWN_MECHANISM}={used}: change one of them")
    return own


def _check_effect(own: Mapping[str, str], protocol: str, of_ssl: frozenset[str], of_sasl: frozenset[str]) -> None:
    idle = own.keys() & ((of_ssl if "SSL" not in protocol else set()) | (of_sasl if "SASL" not in protocol else set()))
    if idle:
        raise SettingsError(f"{protocol} ignores {min(idle)}: remove it, or choose another protocol")


def _stores(own: Mapping[str, str]) -> tuple[Path | None, Path | None]:
    found: list[Path | None] = []
    for store in ("ssl.keystore", "ssl.truststore"):
        location, kind = own.get(f"{store}.location"), own.get(f"{store}.type")
        if location is not None and kind != "PEM":
            raise SettingsError(f"{store}.location must be a PEM file here: set {store}.type=PEM")
        if location is None and kind is not None:
            raise SettingsError(f"{store}.type needs {store}.location: add the location, or remove the type")
        found.append(None if location is None else Path(location))
    return found[0], found[1]


def _login(own: Mapping[str, str], mechanism_name: str) -> Login:
    if mechanism_name not in own or _LOGIN not in own:
        raise SettingsError(f"SASL needs {mechanism_name} and {_LOGIN}: add them")
    mechanism = _mechanism(mechanism_name, own[mechanism_name])
    found = _JAAS.fullmatch(own[_LOGIN].strip())
    options = dict(_OPTION.findall(found[1])) if found is not None else {}
    if options.keys() != {"username", "password"}:
        raise SettingsError(f'{_LOGIN} must be: {_MODULE} required username="NAME" password="PASSWORD";')
    return Login(options["username"], options["password"], mechanism)


def _mechanism(name: str, text: str) -> Mechanism:
    try:
        return Mechanism(text)
    except ValueError:
        known = " or ".join(each.value for each in Mechanism)
        raise SettingsError(f"{name} has the mechanism {text!r}: use {known}") from None


def _one_of(own: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    text = own.get(name, default)
    if text not in allowed:
        raise SettingsError(f"{name} is {text!r}: use one of {', '.join(allowed)}")
    return text
