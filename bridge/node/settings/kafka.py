"""The settings of `[kafka]`: where Kafka's clients are answered, who they must be, and what they may do.

    not set                         no listener, and nothing of Kafka's messages is loaded
    listen                          on loopback, any process of this machine reads the log, and none writes
    + allow_network                 on a private address: any machine of that network reads the log
    + users                         only listed users are answered, who prove a password by SCRAM
    + certificate                   over TLS; on a public address together with `users` or `client_ca`
    + client_ca                     only clients with a certificate that this authority has signed
    + write                         a listed user may have entries committed, as far as its scopes go
    + groups                        consumer groups may note their offsets, in the farm's log

Any process of the machine may open a loopback port, so `write` always needs `users`, also where certificates prove who
a client is: the file is what gives scopes. Beyond loopback it needs TLS as well: SCRAM protects the password and not
what follows the login, so a machine on the way could put entries into a connection that is not encrypted. Readers
learn from the log which routers belong together; therefore the listener leaves the machine only if an operator says so.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bridge.core.log.records import NAME
from bridge.node.settings.reader import Section
from bridge.node.settings.table import KAFKA_TOPIC_DEFAULT
from consensus.protocols.garlic_farm import is_loopback
from gossip import Address
from gossip.node import endpoint, is_private, parse_endpoint

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound


@dataclass(frozen=True, slots=True)
class KafkaPeer:
    """The listener of another node, by what operators call the node: its Raft id is known once it is admitted."""

    name: str
    address: Address
    """Its host may be a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """A listener for Kafka's clients, who are told to connect to `advertise`."""

    listen: Address
    advertise: Address
    topic: str = KAFKA_TOPIC_DEFAULT
    write: bool = False
    groups: bool = False
    control_records: bool = False
    """Whether entries that are not for readers are control records, so that each offset has a record."""
    peers: tuple[KafkaPeer, ...] = ()
    certificate: Path | None = None
    client_ca: Path | None = None
    users: Path | None = None


def kafka_settings(section: Section) -> KafkaSettings | None:
    """The settings; None if there is to be no listener."""
    allow_network, write, groups, control_records = (
        section.flag(key) for key in ("allow_network", "write", "groups", "control_records")
    )
    certificate, client_ca, users = (section.path(key) for key in ("certificate", "client_ca", "users"))
    topic = section.text("topic") or KAFKA_TOPIC_DEFAULT
    listen, advertise = section.address("listen"), _advertised(section)
    peers = tuple(peer for told in section.texts("peers") if (peer := _peer(section, told)) is not None)
    section.finish()
    if section.is_empty:
        return None
    if not section.has("listen"):
        section.problem("listen", 'missing: where Kafka\'s clients connect, such as "127.0.0.1:9092"')
    if _TOPIC.fullmatch(topic) is None or topic.strip(".") == "":
        section.problem("topic", f"{topic[:40]!r} is no name of a topic: 1 to 249 letters, digits, '.', '_', '-'")
    if len({peer.name for peer in peers}) != len(peers):
        section.problem("peers", "names a node twice: each has one listener")
    if client_ca is not None and certificate is None:
        section.problem("client_ca", "needs kafka.certificate: certificates of clients are shown over TLS")
    if listen is None:
        return None
    if advertise is None:
        advertise = listen
        if listen.host in _WILDCARDS:
            section.problem(
                "listen", f"{endpoint(listen)} listens everywhere: set kafka.advertise to what clients reach"
            )
    _check_reach(section, listen, allow_network=allow_network, proven=client_ca is not None or users is not None)
    _check_encryption(section, listen, certificate, write=write, users=users)
    return KafkaSettings(
        listen=listen,
        advertise=advertise,
        topic=topic,
        write=write,
        groups=groups,
        control_records=control_records,
        peers=peers,
        certificate=certificate,
        client_ca=client_ca,
        users=users,
    )


def _advertised(section: Section) -> Address | None:
    told = section.text("advertise")
    return None if told is None else _named(section, "advertise", told)


def _named(section: Section, key: str, told: str) -> Address | None:
    try:
        return Address(*parse_endpoint(told))
    except ValueError as error:
        section.problem(key, str(error))
        return None


def _peer(section: Section, told: str) -> KafkaPeer | None:
    name, at, place = told.partition("@")
    if not at or re.fullmatch(NAME, name) is None:
        section.problem("peers", f"{told[:60]!r} is not NAME@host:port, with the node's name (`garlicfarm servers`)")
        return None
    address = _named(section, "peers", place)
    return None if address is None else KafkaPeer(name, address)


def _check_reach(section: Section, listen: Address, *, allow_network: bool, proven: bool) -> None:
    if is_loopback(listen.host):
        return
    shown = endpoint(listen)
    if not allow_network:
        section.problem(
            "listen",
            f"{shown} is not a loopback address, and what clients read, others on that network can read as well:"
            " use 127.0.0.1, or set kafka.allow_network = true",
        )
    elif not proven and not is_private(listen.host):
        section.problem(
            "listen",
            f"{shown} is open to strangers: there only known clients are answered; list them with kafka.users, or name"
            " their authority with kafka.client_ca",
        )


def _check_encryption(
    section: Section, listen: Address, certificate: Path | None, *, write: bool, users: Path | None
) -> None:
    if write and users is None:
        section.problem(
            "write",
            "true, and no users: without a proof of who it is, every process that reaches the port could write. Make a"
            " line for each client (`garlicfarm keys kafka-user FILE --name N --scope submit`), list them in a file,"
            " and name it with kafka.users",
        )
    if certificate is not None or is_loopback(listen.host):
        return
    if write:
        section.problem(
            "write",
            f"true on {endpoint(listen)} without TLS: a program on the way could add entries to a client's connection;"
            " name a certificate with kafka.certificate",
        )
    elif not is_private(listen.host):
        section.problem(
            "listen",
            f"{endpoint(listen)} is open to strangers, who could read what is sent: name a certificate with"
            " kafka.certificate",
        )
