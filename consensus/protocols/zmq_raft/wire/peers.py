"""Lists of peers in MessagePack, and their faults, in the words of the npm package `zmq-raft`.

    peers = [[id, url], …]          id: a string      url: tcp://IP:port, the address of the peer's ROUTER socket

A client that requests an impossible membership gets the name and the message of an error (ConfigUpdate, status 2).
Names and messages equal the package's, if it has them, because its operators know them. Like the package, `read_peers`
also accepts a url, which then is also the id, or a map of id and url. Sent lists always contain pairs.

`check_peers` checks one list, received or our own, without context: the package crashes if it cannot read a
configuration in its log. Only the server with the present configuration can check a change (`check_change`).

This module is stricter than the package: a url is exactly `tcp://`, an IP address and a port. The package accepts urls
that no socket connects to, such as a url with a space at the end.
"""

import re
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address
from typing import Final

from consensus.core.model import possible_id
from consensus.protocols.zmq_raft.wire.frames import FrameLimits, JsonValue, ZmqRaftError
from consensus.protocols.zmq_raft.wire.messages import MalformedPeers, Peer

_SCHEME: Final = re.compile(r"[A-Za-z0-9.+-]+:")
_AUTHORITY: Final = re.compile(r"tcp:(?://)?([^/?#]*)(.*)", re.DOTALL)
_PORT: Final = re.compile(r"[0-9]{1,5}")
_MAX_PORT: Final = 2**16 - 1
_SHORT_DIFFERENCE: Final = 12


class PeersError(ZmqRaftError):
    """These peers cannot be a configuration; `malformed` is the package's error."""

    def __init__(self, message: str, name: str = "AssertionError") -> None:
        super().__init__(message)
        self.malformed = MalformedPeers(name, message)


def read_peers(value: object, limits: FrameLimits) -> tuple[Peer, ...]:
    """Return the peers in a decoded MessagePack value; raises `PeersError`."""
    if not isinstance(value, list):
        raise PeersError("peers must be an array", "TypeError")
    if len(value) > limits.max_peers:
        raise PeersError(f"at most {limits.max_peers} peers may be in a cluster")
    peers = tuple([_read_peer(each) for each in value])
    check_peers(peers, limits)
    return peers


def check_peers(peers: Sequence[Peer], limits: FrameLimits) -> None:
    """Raise `PeersError` if these cannot be the members of a cluster."""
    if not peers:
        raise PeersError("at least one peer must be defined in a cluster")
    ids: set[str] = set()
    urls: set[str] = set()
    for peer in peers:
        check_peer_id(peer.peer_id, limits)
        if peer.peer_id in ids:
            raise PeersError("peer id must be unique")
        check_url(peer.url, limits)
        if peer.url in urls:
            raise PeersError("peer url must be unique")
        ids.add(peer.peer_id)
        urls.add(peer.url)


def check_consistent(peers: Sequence[Peer], current: Sequence[Peer]) -> None:
    """Raise `PeersError` if a member has two urls, or two members have the same url."""
    urls = {peer.peer_id: peer.url for peer in current}
    taken = set(urls.values())
    for peer in peers:
        known = urls.get(peer.peer_id)
        if known != peer.url and (known is not None or peer.url in taken):
            raise PeersError("new peers must be consistent with current configuration")


def check_change(peers: Sequence[Peer], current: Sequence[Peer]) -> None:
    """Raise `PeersError` if the members cannot become `peers` after `current`.

    The same ids in the same order are not a change; in another order the package accepts them as one.
    """
    check_consistent(peers, current)
    if [peer.peer_id for peer in peers] == [peer.peer_id for peer in current]:
        raise PeersError("no change in cluster membership", "Error")


def check_peer_id(peer_id: str, limits: FrameLimits) -> None:
    """Raise `PeersError` if this cannot be the id of a peer."""
    if not peer_id:
        raise PeersError("peer id must be a non empty string")
    if not possible_id(peer_id) or len(peer_id.encode(errors="replace")) > limits.max_peer_id_bytes:
        raise PeersError(f"peer id must be printable and have at most {limits.max_peer_id_bytes} bytes")


def check_url(url: str, limits: FrameLimits) -> None:
    """Raise `PeersError` if this cannot be the address of a peer."""
    if not url:
        raise PeersError("peer url must be a non empty string")
    if len(url) > limits.max_url_bytes:
        raise PeersError(f"peer url must have at most {limits.max_url_bytes} bytes")
    if not url.startswith("tcp:"):
        scheme = _SCHEME.match(url)
        raise PeersError("peer url protocol must be tcp:" + _difference(scheme and scheme[0], "tcp:"))
    authority, rest = _AUTHORITY.findall(url)[0]
    user, at, address = authority.rpartition("@")
    if at:
        raise PeersError("peer url must have no auth" + _difference(user, None))
    if rest.startswith("#"):
        raise PeersError("peer url must have no hash" + _difference(rest, None))
    if rest or not url.startswith("tcp://"):
        raise PeersError("peer url must have no path")
    _check_address(address)


def peer_values(peers: Sequence[Peer]) -> JsonValue:
    """Return the peers as a value for MessagePack."""
    return [[peer.peer_id, peer.url] for peer in peers]


def _read_peer(value: object) -> Peer:
    peer_id: object
    url: object
    match value:
        case str():
            peer_id = url = value
        case [peer_id, url, *_]:
            pass
        case list():
            peer_id = url = value[0] if value else None
        case dict():
            peer_id, url = value.get("id"), value.get("url")
            peer_id, url = url if peer_id is None else peer_id, peer_id if url is None else url
        case _:
            raise PeersError(
                "peer must be an url string or a tuple [id, url] or an object with 'url' and 'id' properties"
            )
    if not isinstance(peer_id, str):
        raise PeersError("peer id must be a non empty string")
    return Peer(peer_id, url if isinstance(url, str) else "")


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not _PORT.fullmatch(port) or not 1 <= int(port) <= _MAX_PORT:
        raise PeersError("peer url port must be in range 1-65535")
    in_brackets = host.startswith("[") and host.endswith("]")
    try:
        ip = ip_address(host[1:-1] if in_brackets else host)
    except ValueError as error:
        raise PeersError("peer url must have a valid ip address in hostname") from error
    if isinstance(ip, IPv6Address) != in_brackets or "%" in host:
        raise PeersError("peer url must have a valid ip address in hostname")
    if ip.is_unspecified:
        raise PeersError("peer url must not be a placeholder address")


def _difference(found: str | None, expected: str | None) -> str:
    """Return two unequal values in the form of the package's assertions: in one line if they are short."""
    left, right = [f"'{text}'" if text is not None else "null" for text in (found, expected)]
    if len(left) + len(right) <= _SHORT_DIFFERENCE:
        return f"\n\n{left} !== {right}\n"
    return f"\n+ actual - expected\n\n+ {left}\n- {right}"
