"""The error of the decoders and connections of the Garlic Farm protocol, and its kinds.

Bytes from the network are untrusted: for any bytes, a decoder returns a message or raises `GarlicFarmError`. The caller
counts the error's `fault`; the text of the error is for an operator.
"""

from consensus.core.drops import CountedReason


class Fault(CountedReason):
    """Reasons for refused or failed handshakes, connections and messages, in either direction."""

    MALFORMED = "malformed", "bytes that break the rules of HTTP or of the protocol, and handshakes that end early"
    TOO_LARGE = "too-large", "messages and handshakes beyond a limit of size, number or processing time"
    OUT_OF_TURN = (
        "out-of-turn",
        "messages, entries and replies that the protocol does not allow from this sender or at this time",
    )
    WRONG_PATH = "wrong-path", "requests to a path that is not a handshake's, and calls that a server answered with 404"
    WRONG_METHOD = "wrong-method", "requests to the farm's path with a method other than GET"
    WRONG_VERSION = "wrong-version", "requests for another version of the protocol"
    WRONG_CREDENTIALS = (
        "wrong-credentials",
        "wrong users or passwords, and credentials of another kind than Digest with qop=auth",
    )
    REPLAYED = "replayed", "requests of handshakes that arrived a second time"
    WRONG_CLUSTER = "wrong-cluster", "peers with the name or id of another cluster"
    WRONG_SERVER = "wrong-server", "servers other than the called server, and messages to another server"
    UNPROVEN = "unproven", "proofs of identity that are missing or invalid"
    UNKNOWN_IDENTITY = (
        "unknown-identity",
        "identities without an admission under their Raft id, or with an expired one",
    )
    EXPELLED = "expelled", "retired or evicted identities, and removed servers"
    WRONG_CERTIFICATE = (
        "wrong-certificate",
        "servers without an announced certificate, or with a certificate that this node does not trust",
    )
    DISTRUSTED = (
        "distrusted",
        "peers that refused this node's certificate, or closed the connection immediately after TLS",
    )
    PLAIN_REFUSED = (
        "plain-refused",
        "addresses of the other transport, and addresses beyond loopback for a connection without TLS",
    )
    PROXY_REFUSED = "proxy-refused", "failed authentications at the router's HTTP proxy"
    REFUSED_UPGRADE = "refused-upgrade", "handshakes that failed for another reason, such as a broken connection"
    UNREACHABLE = "unreachable", "peers that this node could not connect to"
    SILENT = "silent", "handshakes, messages and receipts of replies that took too long"
    BUSY = (
        "busy",
        "connections and messages refused because a server was full, overloaded, stopped or not ready yet",
    )
    REFUSED_CHANGE = (
        "refused-change",
        "changes of the servers that this leader refused, or could not complete or confirm",
    )
    FOREIGN_SNAPSHOT = (
        "foreign-snapshot",
        "snapshots that this node cannot read, or does not send because they would end the peer's process",
    )


class GarlicFarmError(Exception):
    """A refused or failed handshake, connection or message; `fault` is the reason."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.fault = fault


def malformed(text: str) -> GarlicFarmError:
    """Return the error for bytes that do not follow the layout."""
    return GarlicFarmError(Fault.MALFORMED, text)


def too_large(text: str) -> GarlicFarmError:
    """Return the error for a message or handshake beyond a limit."""
    return GarlicFarmError(Fault.TOO_LARGE, text)
