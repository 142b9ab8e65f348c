"""The settings of `[zmq]`: where ØMQ Raft clients are answered, and what they may do.

    not set                         no endpoint, and pyzmq is not needed
    listen                          on loopback, any process of this machine reads the log, and none writes
    + allow_network                 on a private address: any machine of that network reads the log
    + keys                          only listed keys are answered, over CURVE; the one way on a public address
    + write                         a listed key may have entries committed, as far as its scopes go

ØMQ Raft authenticates no client, and any process of the machine may open a loopback port. So `write` always needs keys.
Readers learn from the log which routers belong together; therefore the endpoint leaves the machine only if an operator
says so, and a public address also needs keys, since plain ØMQ sends everything in the clear.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bridge.node.settings.reader import Section
from consensus.protocols.garlic_farm import is_loopback
from gossip import Address
from gossip.node import endpoint, is_private, numeric, parse_endpoint

SCHEME: Final = "tcp://"
IDENT_BYTES_MAX: Final = 255
_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound


@dataclass(frozen=True, slots=True, kw_only=True)
class ZmqSettings:
    """An endpoint for ØMQ Raft clients. `peers` are the URLs of other nodes' endpoints."""

    listen: Address
    write: bool = False
    ident: str | None = None
    """None: the name of the farm's cluster."""
    broadcast: Address | None = None
    peers: tuple[str, ...] = ()
    keys: Path | None = None

    @property
    def url(self) -> str:
        """Where it listens, as clients name it."""
        return url_of(self.listen)


def url_of(address: Address) -> str:
    """As ØMQ writes it."""
    return SCHEME + endpoint(address)


def zmq_settings(section: Section) -> ZmqSettings | None:
    """The settings; None if there is to be no endpoint."""
    allow_network, write = section.flag("allow_network"), section.flag("write")
    keys, ident = section.path("keys"), section.text("ident")
    listen, broadcast = _address(section, "listen"), _address(section, "broadcast")
    peers = tuple(url_of(each) for told in section.texts("peers") if (each := _parsed(section, "peers", told)))
    section.finish()
    if section.is_empty:
        return None
    if not section.has("listen"):
        section.problem("listen", 'missing: where ØMQ Raft clients connect, such as "tcp://127.0.0.1:7670"')
    for key, address in (("listen", listen), ("broadcast", broadcast)):
        if address is not None:
            _check_reach(section, key, address, allow_network=allow_network, keyed=keys is not None)
    if write and keys is None:
        section.problem(
            "write",
            "true, and no keys: ØMQ Raft authenticates no client, so every process that reaches the port could write."
            " Make a key for each client (`garlicfarm keys new-curve FILE --name N`), list them in a file, and name it"
            " with zmq.keys",
        )
    if ident is not None and len(ident.encode()) > IDENT_BYTES_MAX:
        section.problem("ident", f"{len(ident.encode())} bytes long, and {IDENT_BYTES_MAX} are the limit")
    if listen is None:
        return None
    return ZmqSettings(listen=listen, write=write, ident=ident, broadcast=broadcast, peers=peers, keys=keys)


def _address(section: Section, key: str) -> Address | None:
    told = section.text(key)
    return None if told is None else _parsed(section, key, told)


def _parsed(section: Section, key: str, told: str) -> Address | None:
    try:
        host, port = parse_endpoint(told.removeprefix(SCHEME))
    except ValueError as error:
        section.problem(key, str(error))
        return None
    canonical = numeric(host)
    if canonical is None:
        section.problem(key, f"{told[:80]!r} is not tcp://IP:port with a numeric address, as this protocol wants it")
        return None
    return Address(canonical, port)


def _check_reach(section: Section, key: str, address: Address, *, allow_network: bool, keyed: bool) -> None:
    shown = endpoint(address)
    if address.host in _WILDCARDS:
        section.problem(key, f"{shown} listens everywhere, and clients are told this address: name one of this machine")
    elif is_loopback(address.host):
        return
    elif not allow_network:
        section.problem(
            key,
            f"{shown} is not a loopback address, and what clients read, others on that network can read as well:"
            " use 127.0.0.1, or set zmq.allow_network = true",
        )
    elif not keyed and not is_private(address.host):
        section.problem(key, f"{shown} is a public address: there only listed keys are answered; name them by zmq.keys")
