"""How a node's servers reach one another: the settings, and what of them does not go together.

    transport = "tls"           gossip, and TLS between the servers; the default
    transport = "i2p"           no gossip: I2P names in `consensus.seeds`, by the HTTP proxy of this machine's router

    [consensus]   tls:  ca_file, certificate        instead of certificates that are pinned by gossip
                  i2p:  seeds, advertise (an I2P name and port)
                  both: users_file, logins_file
    [proxy]       i2p:  address, mode ("absolute-uri" or "connect"), user, password_file

What is refused here is refused so that nothing ever travels plain outside a machine: with `i2p` the server listens on
loopback alone, where the router's server tunnel delivers, the proxy is on loopback too, and only I2P names are called.
"""

from dataclasses import dataclass
from pathlib import Path

from bridge.node.settings.choices import TransportKind
from bridge.node.settings.reader import Section
from consensus.protocols.garlic_farm import ProxyMode, is_i2p_name, is_loopback
from gossip import Address
from gossip.node import endpoint, parse_endpoint

NAME_CHARACTERS_MAX = 80
"""What metadata carries; the longest `.b32.i2p` name has 70."""
PROXY_DEFAULT = Address("127.0.0.1", 4444)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """The HTTP proxy that leads into I2P."""

    address: Address = PROXY_DEFAULT
    mode: ProxyMode = ProxyMode.ABSOLUTE_URI
    user: str | None = None
    password_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSettings:
    """Files of `users`; without them the farm key's own credentials serve."""

    users_file: Path | None = None
    logins_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSettings:
    """`proxy` is there exactly with the kind `i2p`."""

    kind: TransportKind = TransportKind.TLS
    ca_file: Path | None = None
    certificate: Path | None = None
    proxy: ProxySettings | None = None
    seeds: tuple[Address, ...] = ()
    users: UserSettings = UserSettings()


def transport_settings(kind: TransportKind, consensus: Section, proxy: Section) -> TransportSettings:
    """The settings; `consensus` is finished by who reads the rest of it."""
    users = UserSettings(users_file=consensus.path("users_file"), logins_file=consensus.path("logins_file"))
    if kind is TransportKind.TLS:
        ca_file, certificate = consensus.path("ca_file"), consensus.path("certificate")
        if (ca_file is None) != (certificate is None):
            missing = "certificate" if certificate is None else "ca_file"
            consensus.problem(missing, "missing: ca_file and certificate go together; without both, gossip pins")
        if consensus.texts("seeds"):
            consensus.problem("seeds", 'only transport = "i2p" has seeds here; those of gossip are gossip.seeds')
        if not proxy.is_empty:
            proxy.problem("address", 'a proxy leads into I2P: it needs transport = "i2p"')
        return TransportSettings(ca_file=ca_file, certificate=certificate, users=users)
    for key in ("ca_file", "certificate"):
        if consensus.path(key) is not None:
            consensus.problem(key, 'I2P encrypts by itself: with transport = "i2p" there is no TLS')
    return TransportSettings(kind=kind, proxy=_proxy(proxy), seeds=_seeds(consensus), users=users)


def i2p_endpoint(section: Section, key: str, told: str) -> Address | None:
    """A name within I2P and a port; noted as a problem if it is something else."""
    host, _, port = told.rpartition(":")
    if (
        len(host) > NAME_CHARACTERS_MAX
        or not is_i2p_name(host)
        or not port.isascii()
        or not port.isdigit()
        or not 0 < int(port) < 2**16
    ):
        section.problem(
            key,
            f"{told[:80]!r} is not an I2P name and port such as name.b32.i2p:7669; outside I2P nothing is sent plain",
        )
        return None
    return Address(host.lower(), int(port))


def advertised(section: Section, transport: TransportSettings) -> Address | None:
    """What other servers connect to, if it is told: an I2P name, a numeric address, or a name in a certificate."""
    told = section.text("advertise")
    if transport.kind is TransportKind.I2P:
        if told is None:
            section.problem(
                "advertise",
                "missing: the address of the router's server tunnel that leads to consensus.bind, such as "
                "name.b32.i2p:7669",
            )
            return None
        return i2p_endpoint(section, "advertise", told)
    if told is None or transport.ca_file is None:
        return section.address("advertise")
    try:
        host, port = parse_endpoint(told)
    except ValueError as error:
        section.problem("advertise", str(error))
        return None
    if is_i2p_name(host):
        section.problem("advertise", f'{told} is a name within I2P: it needs transport = "i2p"')
    return Address(host, port)


def i2p_bind(section: Section, default_port: int) -> Address | None:
    """Where the router's server tunnel delivers."""
    if (told := section.text("bind")) is None:
        return Address("127.0.0.1", default_port)
    bind = section.address("bind")
    if bind is not None and not is_loopback(bind.host):
        section.problem(
            "bind",
            f'{told} is no loopback address: with transport = "i2p" the server has no TLS, so it listens on 127.0.0.1 '
            "only, and the router's server tunnel leads there",
        )
    return bind


def _seeds(consensus: Section) -> tuple[Address, ...]:
    told = consensus.texts("seeds")
    return tuple(seed for each in told if (seed := i2p_endpoint(consensus, "seeds", each)) is not None)


def _proxy(section: Section) -> ProxySettings:
    address = section.address("address") if section.has("address") else PROXY_DEFAULT
    mode = section.choice("mode", ProxyMode)
    user, password_file = section.text("user"), section.path("password_file")
    section.finish()
    if (user is None) != (password_file is None):
        section.problem("user", "user and password_file go together")
    if address is not None and not is_loopback(address.host):
        section.problem(
            "address",
            f"{endpoint(address)} is not on this machine. What goes to a proxy is not encrypted yet: a machine"
            " between could read it, and change what follows the handshake. Use the proxy of a router on this machine",
        )
    return ProxySettings(address=address or PROXY_DEFAULT, mode=mode, user=user, password_file=password_file)
