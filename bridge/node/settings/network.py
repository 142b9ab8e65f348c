"""The settings of `[gossip]`, `[consensus]` and `[proxy]`: addresses of a node, and connections between nodes.

    transport = "tls"           gossip, and TLS between the servers; the default
    transport = "i2p"           no gossip: I2P names in `consensus.seeds`, reached through the HTTP proxy of this
                                machine's router

On a LAN the operator need not set an address. `bridge.node.settings.machine` chooses the machine's private address. The
node binds to this address on the default ports, and discovers the others by broadcast. If no address can be chosen, an
error names the missing setting. Gossip stays in private networks unless `allow_wan` is set (the reason is in
`gossip/node/endpoints.py`).

The checks for `i2p` ensure that unencrypted data never leaves a machine. The server listens only on loopback, the
target of the router's server tunnel. The proxy is also on loopback, and the node connects only to I2P names.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

from bridge.core.membership.reconcile import GRACE_DEFAULT_MS, VOTERS_MAX_DEFAULT
from bridge.node.settings.choices import AdmissionChoice, Timing
from bridge.node.settings.declared import Setting
from bridge.node.settings.machine import LOOPBACK, WILDCARDS, ChosenAddress, Machine, NoAddressError, broadcast_host_of
from bridge.node.settings.reader import PLACEHOLDER, Section, dialed_address, named_address
from consensus.protocols.garlic_farm import ProxyMode, is_i2p_name, is_loopback
from gossip import Address
from gossip.node import (
    DEFAULT_CAPACITY,
    SEEDS_LIMIT,
    endpoint,
    may_gossip,
    numeric,
    numeric_address,
)
from gossip.wire import CAPACITY_LIMIT

GOSSIP_PORT: Final = 7668
CONSENSUS_PORT: Final = 7669
PROXY_DEFAULT: Final = Address(LOOPBACK, 4444)
NAME_CHARACTERS_MAX: Final = 80
"""The longest name that fits into the endpoint in a node's metadata. A `.b32.i2p` name has at most 70 characters."""
_NEVER_PLAIN = (
    "a farm accepts only proven identities, and a plain connection does not prove an identity: the node would accept"
    " any sender that uses the address of a server. To feed servers of another implementation, use a separate program;"
    " see `garlicfarm help garlic-farm 'Servers of another implementation'`"
)


def i2p_address(text: str) -> Address:
    """Parse a name within I2P and a port; ValueError otherwise."""
    host, _, port = text.rpartition(":")
    if (
        len(host) > NAME_CHARACTERS_MAX
        or not is_i2p_name(host)
        or not port.isascii()
        or not port.isdigit()
        or not 0 < int(port) < 2**16
    ):
        raise ValueError(
            f'{text[:80]!r} is not an I2P name and port such as name.b32.i2p:7669; with transport = "i2p" connections'
            " do not use TLS, so they lead only to I2P names"
        )
    return Address(host.lower(), int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipSettings:
    """`[gossip]`."""

    bind: Annotated[
        Address,
        Setting(
            "the address of gossip (UDP)",
            default=f"the private address of this machine, port {GOSSIP_PORT}; `garlicfarm doctor` shows it with the"
            " reason",
            example=f"192.168.1.10:{GOSSIP_PORT}",
        ),
    ]
    chosen: ChosenAddress | None = field(default=None, compare=False)
    """The reason why `bind` has this host; None if the operator has set the host."""
    advertise: Annotated[
        Address | None,
        Setting(
            "the address that peers use, if a NAT is between them and this node",
            default="`gossip.bind`",
            example=f"192.168.1.10:{GOSSIP_PORT}",
            parse=dialed_address,
        ),
    ] = None
    seeds: Annotated[
        tuple[str, ...],
        Setting(
            '`["host:port", …]`, tried repeatedly; needed for nodes outside the reach of broadcast',
            maximum=SEEDS_LIMIT,
            shared=True,
            example=(f"192.168.1.11:{GOSSIP_PORT}", f"192.168.1.12:{GOSSIP_PORT}"),
        ),
    ] = ()
    broadcast: Annotated[
        Address | None,
        Setting(
            'the address for announcements of this node: `"auto"` is the broadcast address of the interface, `"off"`'
            " disables announcements, otherwise an `address:port`",
            default='`"auto"`',
            example="auto",
            none="off",
        ),
    ] = None
    """The broadcast address; None switches announcements off."""
    interface: str | None = None
    """The interface of the broadcast address, if the address alone does not determine it (IPv6)."""
    capacity: Annotated[
        int,
        Setting(
            "maximum number of peers: each probes this node, and this node probes it",
            1,
            CAPACITY_LIMIT,
            shared=True,
            reported="gossipCapacity",
        ),
    ] = DEFAULT_CAPACITY
    timing: Annotated[
        Timing, Setting('`"local"` is for several nodes on one machine', words=("lan", "local"), shared=True)
    ] = Timing.LAN
    allow_wan: Annotated[
        bool,
        Setting(
            "allows public addresses; an observer of gossip over the internet sees which nodes belong together",
            shared=True,
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsensusSettings:
    """`[consensus]`; `bridge.core.membership.reconcile` uses `voters_max`, `grace_ms` and `admit`."""

    bind: Annotated[
        Address,
        Setting(
            "the address of the Raft server (TCP, TLS); with `i2p` on loopback only",
            default=f"gossip's address, port {CONSENSUS_PORT}; with `i2p` `{LOOPBACK}:{CONSENSUS_PORT}`",
            example=f"192.168.1.10:{CONSENSUS_PORT}",
        ),
    ]
    advertise: Annotated[
        Address,
        Setting(
            "the address that other servers connect to; with `i2p` the `name.b32.i2p:port` of the router's server"
            " tunnel; with `ca_file` it may be a DNS name",
            default="`consensus.bind`; if its host is a wildcard, the host of `gossip.advertise` with the port of"
            " `consensus.bind`; with `i2p` required",
            example=f"192.168.1.10:{CONSENSUS_PORT}",
        ),
    ]
    timing: Annotated[
        Timing,
        Setting(
            'elections begin after 1 to 2 s with `"lan"`, 0.5 to 1 s with `"local"`, 30 to 60 s with `"i2p"`.'
            " With `i2p`, other limits between servers are also longer",
            default='`"lan"`; with `i2p` `"i2p"`',
            shared=True,
            reported="timing",
        ),
    ] = Timing.LAN
    seeds: Annotated[
        tuple[Address, ...],
        Setting(
            'with `i2p`: `["name.b32.i2p:7669", …]`, the other nodes',
            maximum=32,
            example=("name.b32.i2p:7669",),
            parse=i2p_address,
        ),
    ] = ()
    ca_file: Annotated[
        Path | None,
        Setting(
            "an authority's certificate, together with `certificate`; without both, each node makes a certificate and"
            " gossip distributes its fingerprint"
        ),
    ] = None
    certificate: Annotated[
        Path | None, Setting("this node's certificate, its chain and its key in one PEM file (mode 0600)")
    ] = None
    users_file: Annotated[
        Path | None,
        Setting("lines `user:password`: users that may connect, instead of the user from the farm key (mode 0600)"),
    ] = None
    logins_file: Annotated[
        Path | None, Setting("lines `host:port user:password`: logins of this node at other servers (mode 0600)")
    ] = None
    segment_bytes: Annotated[
        int,
        Setting(
            "size of each file of the log in bytes; a file is filled with zeros in advance",
            64 * 1024,
            1024 * 1024 * 1024,
            shared=True,
        ),
    ] = 64 * 1024 * 1024
    voters_max: Annotated[
        int,
        Setting(
            "maximum number of voters, odd; applies while this node leads", 1, 9, shared=True, reported="votersMax"
        ),
    ] = VOTERS_MAX_DEFAULT
    grace_ms: Annotated[
        int,
        Setting(
            "time until a dead voter is removed, in milliseconds; applies while this node leads",
            1_000,
            7 * 24 * 3600 * 1000,
            shared=True,
            reported="grace",
        ),
    ] = GRACE_DEFAULT_MS
    admit: Annotated[
        AdmissionChoice,
        Setting(
            'nodes beyond the founders: `"ask"` waits for `garlicfarm node approve`; `"all"` admits nodes with the'
            " key file, one in a reporting period. It applies while this node leads, so set it alike on all",
            shared=True,
            reported="admit",
        ),
    ] = AdmissionChoice.ASK
    derived: frozenset[str] = field(default=frozenset(), compare=False)
    """`consensus.bind` and `consensus.advertise`, if they are unset: their values then come from other settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """`[proxy]`: the HTTP proxy that leads into I2P."""

    address: Annotated[Address, Setting("with `i2p`: the HTTP proxy, on loopback")] = PROXY_DEFAULT
    mode: Annotated[ProxyMode, Setting("with `i2p`: the form of requests to the proxy")] = ProxyMode.ABSOLUTE_URI
    user: Annotated[str | None, Setting("the user, if the proxy requires one")] = None
    password_file: Annotated[Path | None, Setting("its password: one line, mode 0600")] = None


def read_gossip(section: Section, machine: Machine, chosen: ChosenAddress | NoAddressError) -> GossipSettings:
    """Read `[gossip]`; `chosen` is the address of this machine, for a node without a configured address."""
    bind = PLACEHOLDER
    if isinstance(chosen, ChosenAddress):
        bind = Address(chosen.host, GOSSIP_PORT)
    elif not section.has("bind"):
        section.problem("bind", _not_chosen(chosen))
    broadcast = section.parsed("broadcast", str) or "auto"
    found = section.read(GossipSettings, {"bind": bind}, broadcast=None)
    local = found.advertise if found.bind.host in WILDCARDS else found.bind
    if local is None:
        section.problem(
            "bind",
            f"{endpoint(found.bind)} listens on every interface: set gossip.advertise to the address that peers"
            " can reach",
        )
    elif broadcast == "auto":
        found = _with_broadcast(found, local, machine)
    elif broadcast != "off":
        found = replace(found, broadcast=section.parsed("broadcast", numeric_address))
    _check_private(section, found)
    return replace(found, chosen=None if section.has("bind") or isinstance(chosen, NoAddressError) else chosen)


def _not_chosen(chosen: NoAddressError) -> str:
    example = endpoint(Address(chosen.example, GOSSIP_PORT))
    how, file = f'for instance with bind = "{example}"', "in [gossip] of the node's configuration file"
    if chosen.needs_wan:
        return f"{chosen}, {how} and allow_wan = true {file}; observers then see which nodes belong together"
    return f"{chosen}, {how} {file}, or with --bind {example}"


def _with_broadcast(settings: GossipSettings, local: Address, machine: Machine) -> GossipSettings:
    """Return the settings with the broadcast address of the interface.

    They have the interface's name, too, if the address alone does not determine the interface (IPv6).
    """
    hosts = ((broadcast_host_of(each), each) for each in machine.network.interfaces() if each.host == local.host)
    for host, each in hosts:
        if host:
            interface = each.name if ":" in host else None
            return replace(settings, broadcast=Address(host, settings.bind.port), interface=interface)
    return settings


def _check_private(section: Section, settings: GossipSettings) -> None:
    for key, address in (("bind", settings.bind), ("advertise", settings.advertise), ("broadcast", settings.broadcast)):
        if address is None or address.host in WILDCARDS or settings.allow_wan or may_gossip(address.host):
            continue
        section.problem(
            key,
            f"{endpoint(address)} is not a private address, and gossip over the internet shows which nodes "
            "belong together: use an address of the LAN, or set allow_wan = true",
        )
    for seed in settings.seeds:
        try:
            host = named_address(seed).host
        except ValueError as error:
            section.problem("seeds", str(error))
            continue
        if not settings.allow_wan and numeric(host) is not None and not may_gossip(host):
            section.problem(
                "seeds", f"{seed} is not a private address: use an address of the LAN, or set allow_wan = true"
            )


def read_consensus(section: Section, gossip: GossipSettings | None) -> ConsensusSettings:
    """Read `[consensus]`. Without `gossip`, the transport is `i2p`."""
    section.refused("plain", _NEVER_PLAIN)
    host, timing, parse = LOOPBACK, Timing.I2P, i2p_address
    if gossip is not None:
        host, timing = gossip.bind.host, Timing.LAN
        parse = named_address if section.has("ca_file") else dialed_address
    advertise = section.parsed("advertise", parse)
    defaults = {"bind": Address(host, CONSENSUS_PORT), "timing": timing}
    found = section.read(ConsensusSettings, defaults, advertise=advertise or PLACEHOLDER)
    if found.voters_max % 2 == 0:
        section.problem(
            "voters_max",
            f"{found.voters_max} is even: {found.voters_max} voters tolerate no more failures than "
            f"{found.voters_max - 1}",
        )
    if gossip is None:
        _check_i2p(section, found)
    else:
        _check_tls(section, found)
        if advertise is None:
            found = replace(found, advertise=_advertised(section, found.bind, gossip))
    derived = (key for key in ("bind", "advertise") if gossip is not None and not section.has(key))
    return replace(found, derived=frozenset(map(section.name, derived)))


def _advertised(section: Section, bind: Address, gossip: GossipSettings) -> Address:
    if bind.host in WILDCARDS:
        if gossip.advertise is not None:
            return Address(gossip.advertise.host, bind.port)
        if section.has("bind"):
            section.problem("bind", f"{endpoint(bind)} listens on every interface: set consensus.advertise as well")
    return bind


def _check_tls(section: Section, settings: ConsensusSettings) -> None:
    if (settings.ca_file is None) != (settings.certificate is None):
        missing = "certificate" if settings.certificate is None else "ca_file"
        section.problem(
            missing, "missing: ca_file and certificate go together; without both, the node makes its own certificate"
        )
    if settings.seeds:
        section.problem("seeds", 'only transport = "i2p" has seeds here; the seeds of gossip are gossip.seeds')
    if is_i2p_name(settings.advertise.host):
        section.problem("advertise", f'{endpoint(settings.advertise)} is a name within I2P: it needs transport = "i2p"')


def _check_i2p(section: Section, settings: ConsensusSettings) -> None:
    for key in ("ca_file", "certificate"):
        if section.has(key):
            section.problem(key, 'I2P encrypts the connection: transport = "i2p" does not use TLS')
    if not section.has("advertise"):
        section.problem(
            "advertise",
            "missing: the address of the router's server tunnel that leads to consensus.bind, such as "
            "name.b32.i2p:7669",
        )
    if not is_loopback(settings.bind.host):
        section.problem(
            "bind",
            f'{endpoint(settings.bind)} is not a loopback address: with transport = "i2p" the server does not use '
            "TLS, so it listens on 127.0.0.1 only, and the router's server tunnel leads there",
        )


def read_proxy(section: Section) -> ProxySettings:
    """Read `[proxy]`."""
    found = section.read(ProxySettings)
    if (found.user is None) != (found.password_file is None):
        section.problem("user", "user and password_file go together")
    if not is_loopback(found.address.host):
        section.problem(
            "address",
            f"{endpoint(found.address)} is not on this machine. The connection to a proxy is not encrypted: a machine"
            " between could read the data, and change them after the servers' handshake. Use the proxy of a router on"
            " this machine",
        )
    return found
