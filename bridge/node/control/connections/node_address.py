"""The address of a node for requests: its socket on this machine, or its control endpoint over TLS.

    /var/lib/garlicfarm/control.sock           a path: a process of a trusted user must listen there (`local_trust`)
    https://192.168.7.5:7650  + a token file   TCP: the node must prove its identity before it receives the token

`bridge.node.control.connections.remote_node` makes an address of the second kind.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from consensus import endpoint_text

if TYPE_CHECKING:
    import ssl  # `bridge.node.control.connections.remote_node` loads it: most commands query a node of this machine

SCHEME: Final = "https://"
READ_TOKEN: Final = "control.read.token to read, control.admin.token for changes"  # noqa: S105 - names of files


class NodeAddressError(ValueError):
    """A node's address, token or certificate is unusable; the text contains the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class RemoteNode:
    """A control endpoint on TCP, with the client's token and TLS context."""

    host: str
    port: int
    token: str = field(repr=False)
    token_file: Path
    """The file of the token, for the text of a refusal."""
    context: "ssl.SSLContext" = field(repr=False)

    @property
    def authority(self) -> str:
        """Host and port, as in a URL."""
        return endpoint_text(self.host, self.port)

    def __str__(self) -> str:
        return SCHEME + self.authority


NodeAddress: TypeAlias = Path | RemoteNode


def is_remote(named: str) -> bool:
    """Return True if this is the URL of a node; otherwise it is a path."""
    return "://" in named
