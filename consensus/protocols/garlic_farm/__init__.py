"""The Garlic Farm protocol: servers and clients over TLS or I2P, with handshake and proof of identity.

`PeerLinks` is the `Transport` that a server sends by, `GarlicFarmServer` listens, `GarlicFarmClient` finds the leader.
What is named here is fetched when it is first used. Connections without a handshake (`node.plain_peers`) are not among
it: they are for tests.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from consensus.protocols.garlic_farm.node.client import ClientOptions, GarlicFarmClient, read_barrier_anywhere
    from consensus.protocols.garlic_farm.node.client_quota import ClientQuota
    from consensus.protocols.garlic_farm.node.client_requests import ClientRequests, ExecutedRequests
    from consensus.protocols.garlic_farm.node.connection import (
        Cancel,
        ClientAnswer,
        ConnectionOptions,
        RequestHandler,
        ask_server,
        nothing_to_cancel,
    )
    from consensus.protocols.garlic_farm.node.connectors import (
        Connector,
        HttpProxy,
        I2pConnector,
        PeerAddress,
        TlsConnector,
        authority_context,
        is_i2p_name,
        is_loopback,
    )
    from consensus.protocols.garlic_farm.node.dialer import Dialed, Dialer
    from consensus.protocols.garlic_farm.node.joining import Joining
    from consensus.protocols.garlic_farm.node.links import LinkOptions, PeerLinks
    from consensus.protocols.garlic_farm.node.listener import ConnectionLimits, GarlicFarmServer
    from consensus.protocols.garlic_farm.node.membership import MemberRequests, Members, MembershipOptions
    from consensus.protocols.garlic_farm.node.metrics import Incident, Metrics
    from consensus.protocols.garlic_farm.wire.digest import Credentials
    from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
    from consensus.protocols.garlic_farm.wire.messages import MembershipRequest, Reply
    from consensus.protocols.garlic_farm.wire.nonces import NonceBook
    from consensus.protocols.garlic_farm.wire.peers import Claim, ListedPeers, PeerDirectory, ProvenPeer, Refusal
    from consensus.protocols.garlic_farm.wire.proof import (
        SIGNATURE_BYTES,
        ConnectionRole,
        is_of_small_order,
        tls_channel,
    )
    from consensus.protocols.garlic_farm.wire.proxy import ProxyMode
    from consensus.protocols.garlic_farm.wire.upgrade import ADMISSIONS_MAX, INTRODUCTIONS_MAX, Identity
    from consensus.protocols.garlic_farm.wire.upgrade_client import Caller, Session, Switched, UpgradeClient
    from consensus.protocols.garlic_farm.wire.upgrade_server import Authenticator, Upgraded, UpgradeServer

__all__ = [
    "ADMISSIONS_MAX",
    "INTRODUCTIONS_MAX",
    "SIGNATURE_BYTES",
    "Authenticator",
    "Caller",
    "Cancel",
    "Claim",
    "ClientAnswer",
    "ClientOptions",
    "ClientQuota",
    "ClientRequests",
    "ConnectionLimits",
    "ConnectionOptions",
    "ConnectionRole",
    "Connector",
    "Credentials",
    "Dialed",
    "Dialer",
    "ExecutedRequests",
    "Fault",
    "GarlicFarmClient",
    "GarlicFarmError",
    "GarlicFarmServer",
    "HttpProxy",
    "I2pConnector",
    "Identity",
    "Incident",
    "Joining",
    "LinkOptions",
    "ListedPeers",
    "MemberRequests",
    "Members",
    "MembershipOptions",
    "MembershipRequest",
    "Metrics",
    "NonceBook",
    "PeerAddress",
    "PeerDirectory",
    "PeerLinks",
    "ProvenPeer",
    "ProxyMode",
    "Refusal",
    "Reply",
    "RequestHandler",
    "Session",
    "Switched",
    "TlsConnector",
    "UpgradeClient",
    "UpgradeServer",
    "Upgraded",
    "ask_server",
    "authority_context",
    "is_i2p_name",
    "is_loopback",
    "is_of_small_order",
    "nothing_to_cancel",
    "read_barrier_anywhere",
    "tls_channel",
]

_HOMES: Final = {
    "consensus.protocols.garlic_farm.node.client": ("ClientOptions", "GarlicFarmClient", "read_barrier_anywhere"),
    "consensus.protocols.garlic_farm.node.client_quota": ("ClientQuota",),
    "consensus.protocols.garlic_farm.node.client_requests": ("ClientRequests", "ExecutedRequests"),
    "consensus.protocols.garlic_farm.node.connection": (
        "Cancel",
        "ClientAnswer",
        "ConnectionOptions",
        "RequestHandler",
        "ask_server",
        "nothing_to_cancel",
    ),
    "consensus.protocols.garlic_farm.node.connectors": (
        "Connector",
        "HttpProxy",
        "I2pConnector",
        "PeerAddress",
        "TlsConnector",
        "authority_context",
        "is_i2p_name",
        "is_loopback",
    ),
    "consensus.protocols.garlic_farm.node.dialer": ("Dialed", "Dialer"),
    "consensus.protocols.garlic_farm.node.joining": ("Joining",),
    "consensus.protocols.garlic_farm.node.links": ("LinkOptions", "PeerLinks"),
    "consensus.protocols.garlic_farm.node.listener": ("ConnectionLimits", "GarlicFarmServer"),
    "consensus.protocols.garlic_farm.node.membership": ("MemberRequests", "Members", "MembershipOptions"),
    "consensus.protocols.garlic_farm.node.metrics": ("Incident", "Metrics"),
    "consensus.protocols.garlic_farm.wire.digest": ("Credentials",),
    "consensus.protocols.garlic_farm.wire.errors": ("Fault", "GarlicFarmError"),
    "consensus.protocols.garlic_farm.wire.messages": ("MembershipRequest", "Reply"),
    "consensus.protocols.garlic_farm.wire.nonces": ("NonceBook",),
    "consensus.protocols.garlic_farm.wire.peers": ("Claim", "ListedPeers", "PeerDirectory", "ProvenPeer", "Refusal"),
    "consensus.protocols.garlic_farm.wire.proof": (
        "ConnectionRole",
        "SIGNATURE_BYTES",
        "is_of_small_order",
        "tls_channel",
    ),
    "consensus.protocols.garlic_farm.wire.proxy": ("ProxyMode",),
    "consensus.protocols.garlic_farm.wire.upgrade": ("ADMISSIONS_MAX", "INTRODUCTIONS_MAX", "Identity"),
    "consensus.protocols.garlic_farm.wire.upgrade_client": ("Caller", "Session", "Switched", "UpgradeClient"),
    "consensus.protocols.garlic_farm.wire.upgrade_server": ("Authenticator", "UpgradeServer", "Upgraded"),
}

if not TYPE_CHECKING:  # mypy would take any name for one of the face

    def __getattr__(name: str) -> Any:
        """Fetch a public name from its home."""
        for home, names in _HOMES.items():
            if name in names:
                return getattr(import_module(home), name)
        raise AttributeError(f"module 'consensus.protocols.garlic_farm' has no attribute {name!r}")
