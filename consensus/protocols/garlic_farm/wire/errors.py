"""The one error of the decoders of the Garlic Farm protocol, and its kinds.

Bytes from the network are untrusted: for any bytes, a decoder returns a message or raises `GarlicFarmError`. The caller
counts the error's `fault`; the text of the error is for an operator.
"""

from consensus.core.drops import CountedReason


class Fault(CountedReason):
    """Reasons to refuse bytes or a peer."""

    MALFORMED = "malformed", "bytes that are not a message of the protocol"
    TOO_LARGE = "too-large", "messages that announce more than the limits allow"
    OUT_OF_TURN = (
        "out-of-turn",
        "messages that their sender may not send then, such as a server's message without proof of its identity",
    )
    WRONG_PATH = "wrong-path", "requests to a path that is not the farm's"
    WRONG_METHOD = "wrong-method", "requests with a method that no handshake has"
    WRONG_VERSION = "wrong-version", "peers with another version of the protocol"
    WRONG_CREDENTIALS = "wrong-credentials", "wrong users or passwords"
    REPLAYED = "replayed", "recorded handshakes that were sent again"
    WRONG_CLUSTER = "wrong-cluster", "peers with the name or id of another cluster"
    WRONG_SERVER = "wrong-server", "servers that are not the expected server at their address"
    UNPROVEN = "unproven", "Raft ids without a proof"
    UNKNOWN_IDENTITY = "unknown-identity", "identities that the log has not admitted"
    EXPELLED = "expelled", "retired or evicted identities, and removed servers"
    WRONG_CERTIFICATE = "wrong-certificate", "certificates that have expired or are not the announced certificate"
    DISTRUSTED = "distrusted", "peers that do not trust this node's certificate"
    PLAIN_REFUSED = "plain-refused", "addresses that this node may not call without TLS"
    PROXY_REFUSED = "proxy-refused", "refusals of the router's HTTP proxy"
    REFUSED_UPGRADE = "refused-upgrade", "handshakes that the peer refused for another reason"
    UNREACHABLE = "unreachable", "peers that this node could not connect to"
    SILENT = "silent", "peers that sent nothing in time"
    BUSY = "busy", "connections without a free place, or to a node that does not know its farm yet"
    REFUSED_CHANGE = "refused-change", "changes of the servers that the peer refused"
    FOREIGN_SNAPSHOT = "foreign-snapshot", "snapshots that are not the farm's"


class GarlicFarmError(Exception):
    """A violation of the protocol in received bytes or by a peer's behavior."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.fault = fault


def malformed(text: str) -> GarlicFarmError:
    """Return the error for bytes that do not follow the layout."""
    return GarlicFarmError(Fault.MALFORMED, text)


def too_large(text: str) -> GarlicFarmError:
    """Return the error for bytes that announce more than the limits allow; nothing was allocated for them."""
    return GarlicFarmError(Fault.TOO_LARGE, text)
