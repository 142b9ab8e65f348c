"""The one error that decoders of the Garlic Farm protocol raise, and what may be wrong.

Bytes from the network are untrusted: whatever they contain, a decoder returns a message or raises `GarlicFarmError`.
Its `fault` is the coarse class by which a shell counts it; its text is the sentence that an operator reads.
"""

from enum import Enum


class Fault(Enum):
    """Why bytes or a peer were refused; the value names the counter."""

    MALFORMED = "malformed"
    TOO_LARGE = "too-large"
    OUT_OF_TURN = "out-of-turn"
    WRONG_PATH = "wrong-path"
    WRONG_METHOD = "wrong-method"
    WRONG_VERSION = "wrong-version"
    WRONG_CREDENTIALS = "wrong-credentials"
    REPLAYED = "replayed"
    WRONG_CLUSTER = "wrong-cluster"
    WRONG_SERVER = "wrong-server"
    UNPROVEN = "unproven"
    UNKNOWN_IDENTITY = "unknown-identity"
    EXPELLED = "expelled"
    WRONG_CERTIFICATE = "wrong-certificate"
    DISTRUSTED = "distrusted"
    PLAIN_REFUSED = "plain-refused"
    PROXY_REFUSED = "proxy-refused"
    REFUSED_UPGRADE = "refused-upgrade"
    UNREACHABLE = "unreachable"
    SILENT = "silent"
    BUSY = "busy"
    REFUSED_CHANGE = "refused-change"
    FOREIGN_SNAPSHOT = "foreign-snapshot"


class GarlicFarmError(Exception):
    """What arrived is not what the protocol allows, or a peer did not do what the protocol asks."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.fault = fault


def malformed(text: str) -> GarlicFarmError:
    """The bytes do not follow the layout."""
    return GarlicFarmError(Fault.MALFORMED, text)


def too_large(text: str) -> GarlicFarmError:
    """The bytes announce more than the limits allow; nothing was allocated for them."""
    return GarlicFarmError(Fault.TOO_LARGE, text)
