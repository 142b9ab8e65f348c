"""The settings of `[zmq]` and `[kafka]`: where clients read the farm's log, their credentials and their rights.

    not set                         no endpoint, and the code of the protocol is not loaded
    listen                          on loopback, any process of this machine can read the log, and none can write
    + allow_network                 on a private address: any machine of that network can read the log
    + keys, users, client_ca        only clients with a listed key, a password (SCRAM), or a signed certificate
    + certificate                   [kafka] over TLS; on a public address together with `users` or `client_ca`
    + write                         a listed client can commit entries within its scopes
    + groups                        [kafka] consumer groups may store their offsets, in the farm's log

Any process of the machine can connect to a loopback port. So `write` always needs `keys` or `users`, the file that
grants each client its scopes. Beyond loopback, Kafka's writers need TLS as well: SCRAM protects the password but not
the data after the login.
Readers of the log learn the nodes of the farm. Therefore an endpoint listens beyond loopback only if an operator
permits it, and a public address also needs credentials and encryption.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

from bridge.core.log.fields import NAME
from bridge.node.settings.declared import Setting
from bridge.node.settings.machine import WILDCARDS
from bridge.node.settings.reader import Section, named_address
from consensus.protocols.garlic_farm import is_loopback
from gossip import Address
from gossip.node import dialed, endpoint, is_private, numeric, parse_endpoint

SCHEME: Final = "tcp://"
IDENT_BYTES_MAX: Final = 255
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NETWORK: Final = Setting("allows an address that is not loopback, so that others on that network can read the log")


def url_of(address: Address) -> str:
    """Return an address as ØMQ writes it."""
    return SCHEME + endpoint(address)


def _zmq_address(text: str) -> Address:
    host, port = parse_endpoint(text.removeprefix(SCHEME))
    canonical = numeric(host)
    if canonical is None:
        raise ValueError(f"{text[:80]!r} is not tcp://IP:port with a numeric address, as this protocol requires")
    return Address(canonical, port)


def _zmq_ident(text: str) -> str:
    if (length := len(text.encode())) > IDENT_BYTES_MAX:
        raise ValueError(f"{length} bytes long; the limit is {IDENT_BYTES_MAX}")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class ZmqSettings:
    """`[zmq]`: an endpoint for ØMQ Raft clients."""

    listen: Annotated[
        Address,
        Setting(
            "the address where ØMQ Raft clients read the farm's log: `tcp://IP:port` or `IP:port`; needs the extra"
            " `zmq`",
            default="nowhere",
            missing='missing: the address for ØMQ Raft clients, such as "tcp://127.0.0.1:7670"',
            example="tcp://127.0.0.1:7671",
            parse=_zmq_address,
            show=url_of,
        ),
    ]
    allow_network: Annotated[bool, _NETWORK] = False
    write: Annotated[
        bool, Setting("clients with a listed key may commit entries; needs `zmq.keys`, on loopback too")
    ] = False
    ident: Annotated[
        str | None,
        Setting(
            "the cluster ident of the clients",
            default="the cluster's name, as `garlicfarm status` shows it",
            example="the cluster's name",
            parse=_zmq_ident,
        ),
    ] = None
    broadcast: Annotated[
        Address | None,
        Setting(
            "the address for the broadcast of applied entries: `tcp://IP:port` or `IP:port`",
            default="nowhere",
            example="tcp://127.0.0.1:7672",
            parse=_zmq_address,
        ),
    ] = None
    peers: Annotated[
        tuple[str, ...],
        Setting(
            '`["tcp://IP:port", …]`, the ØMQ endpoints of other nodes of this farm, as clients reach them',
            maximum=16,
            example=("tcp://192.168.1.11:7671",),
            parse=lambda text: url_of(dialed(_zmq_address(text))),
        ),
    ] = ()
    keys: Annotated[
        Path | None,
        Setting(
            "lines `NAME KEY SCOPE …` (mode 0600): the endpoint serves only these keys, over CURVE; see [read the log"
            " from Node.js](../how-to/read-the-log-from-node-js.md)"
        ),
    ] = None

    @property
    def url(self) -> str:
        """The address of the endpoint for clients."""
        return url_of(self.listen)


@dataclass(frozen=True, slots=True)
class KafkaPeer:
    """The listener of another node, with the node's name, because its Raft id is known only after its admission."""

    name: str
    address: Address
    """Address of the listener, whose host may be a name."""

    def __str__(self) -> str:
        return f"{self.name}@{endpoint(self.address)}"


def _kafka_peer(text: str) -> KafkaPeer:
    name, at, place = text.partition("@")
    if not at or re.fullmatch(NAME, name) is None:
        raise ValueError(f"{text[:60]!r} is not NAME@host:port, with the node's name (`garlicfarm servers`)")
    return KafkaPeer(name, named_address(place))


def _topic(text: str) -> str:
    if _TOPIC.fullmatch(text) is None or text.strip(".") == "":
        raise ValueError(f"{text[:40]!r} is not the name of a topic: 1 to 249 letters, digits, '.', '_', '-'")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """`[kafka]`: a listener for Kafka's clients, which connect to `advertise`."""

    listen: Annotated[
        Address,
        Setting(
            "the address where Kafka clients read the farm's log: `IP:port`; needs the extra `kafka`",
            default="nowhere",
            missing='missing: the address for Kafka clients, such as "127.0.0.1:9092"',
        ),
    ]
    advertise: Annotated[
        Address,
        Setting(
            "`host:port`, the address that clients connect to; with TLS a name in the certificate",
            default="`kafka.listen`",
            parse=named_address,
        ),
    ]
    allow_network: Annotated[bool, _NETWORK] = False
    topic: Annotated[str, Setting("the topic's name; the same on all nodes", parse=_topic)] = "farm-log"
    write: Annotated[
        bool,
        Setting("listed users may produce entries that their scopes permit; needs `kafka.users`, on loopback too"),
    ] = False
    groups: Annotated[
        bool,
        Setting(
            "consumer groups may commit their offsets, as entries of the log. The leader coordinates the groups, so set"
            " it on all nodes with a listener, and also `kafka.peers`"
        ),
    ] = False
    control_records: Annotated[
        bool,
        Setting(
            "readers get control records in place of entries that they must not see, so that each offset has a record."
            " Some clients (kafka-python-ng, kafka-go) deliver them. Set it alike on all nodes"
        ),
    ] = False
    peers: Annotated[
        tuple[KafkaPeer, ...],
        Setting(
            '`["NAME@host:port", …]`, other nodes of this farm with their listeners, as clients reach them',
            maximum=64,
            parse=_kafka_peer,
        ),
    ] = ()
    certificate: Annotated[
        Path | None, Setting("TLS: the listener's certificate, its chain and its key in one PEM file (mode 0600)")
    ] = None
    client_ca: Annotated[
        Path | None,
        Setting(
            "an authority's certificate: the listener serves only clients with a certificate signed by it; needs"
            " `kafka.certificate`"
        ),
    ] = None
    users: Annotated[
        Path | None,
        Setting(
            "lines `NAME CREDENTIAL SCOPE …` (mode 0600), as `garlicfarm keys kafka-user` makes them: the listener"
            ' serves only these users, by SCRAM; with `kafka.client_ca` lines `"SUBJECT" certificate SCOPE …`, which'
            " grant scopes"
        ),
    ] = None


def read_zmq(section: Section) -> ZmqSettings | None:
    """Read `[zmq]`; return None without an endpoint."""
    if section.is_empty:
        return None
    found = section.read(ZmqSettings)
    for key, address in (("listen", found.listen), ("broadcast", found.broadcast)):
        if address is None:
            continue
        if address.host in WILDCARDS:
            section.problem(
                key,
                f"{endpoint(address)} listens on every interface, and clients get this address: name one address of"
                " this machine",
            )
        elif _is_public(section, key, address, allow_network=found.allow_network) and found.keys is None:
            section.problem(
                key,
                f"{endpoint(address)} is a public address: list the keys of your clients with zmq.keys",
            )
    if found.write and found.keys is None:
        section.problem(
            "write",
            "true without keys: ØMQ Raft does not authenticate clients, so every process that reaches the port could"
            " write. Make a key for each client (`garlicfarm keys new-curve FILE --name N`), list them in a file, and"
            " name it with zmq.keys",
        )
    return found


def read_kafka(section: Section) -> KafkaSettings | None:
    """Read `[kafka]`; return None without a listener."""
    if section.is_empty:
        return None
    found = section.read(KafkaSettings)
    listen, shown = found.listen, endpoint(found.listen)
    if len({peer.name for peer in found.peers}) != len(found.peers):
        section.problem("peers", "names a node twice: each node has one listener")
    if found.client_ca is not None and found.certificate is None:
        section.problem("client_ca", "needs kafka.certificate: certificates of clients are shown over TLS")
    if not section.has("advertise"):
        found = replace(found, advertise=listen)
        if listen.host in WILDCARDS:
            section.problem(
                "listen", f"{shown} listens on every interface: set kafka.advertise to the address that clients reach"
            )
    is_public = _is_public(section, "listen", listen, allow_network=found.allow_network)
    if is_public and found.client_ca is None and found.users is None:
        section.problem(
            "listen",
            f"{shown} is a public address: list your clients with kafka.users, or name their authority with"
            " kafka.client_ca",
        )
    _check_encryption(section, found)
    return found


def _check_encryption(section: Section, settings: KafkaSettings) -> None:
    shown = endpoint(settings.listen)
    if settings.write and settings.users is None:
        section.problem(
            "write",
            "true without users: clients are not authenticated, so every process that reaches the port could write."
            " Make a line for each client (`garlicfarm keys kafka-user FILE --name N --scope submit`), list them in a"
            " file, and name it with kafka.users",
        )
    if settings.certificate is not None or is_loopback(settings.listen.host):
        return
    if settings.write:
        section.problem(
            "write",
            f"true on {shown} without TLS: a program on the way could insert entries into a client's connection;"
            " name a certificate with kafka.certificate",
        )
    elif not is_private(settings.listen.host):
        section.problem(
            "listen",
            f"{shown} is a public address, where others could read the traffic: name a certificate with"
            " kafka.certificate",
        )


def _is_public(section: Section, key: str, address: Address, *, allow_network: bool) -> bool:
    """Return True for a permitted public address; note a problem for an address beyond loopback without permission."""
    if is_loopback(address.host):
        return False
    if not allow_network:
        section.problem(
            key,
            f"{endpoint(address)} is not a loopback address, so others on that network can also read the log: use"
            f" 127.0.0.1, or set {section.name('allow_network')} = true",
        )
    return allow_network and not is_private(address.host)
