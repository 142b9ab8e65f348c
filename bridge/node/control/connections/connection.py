"""One request to a node over one connection, in two ways, and the errors of both.

    async_connection      httpcore on trio: for TCP, and for programs with an event loop; it is kept between requests
    blocking_connection   a blocking socket of this machine, without an event loop: importing trio takes longer than
                          most requests

The client (`bridge.node.control.client`) decides about repetitions, refusals and time limits. Before a request on a
socket, both check the user of the listening process (`bridge.node.security.local_trust`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from bridge.node.security.local_trust import check_control_socket, facts_about_node

CONNECT_PAUSE_S = 0.05
"""Pause before the next attempt while the node's backlog is full."""


class ControlError(Exception):
    """The request failed or was refused; the text contains the reason and the remedy."""


class RefusalError(ControlError):
    """The node refused the request, and did not carry it out."""


class NoReplyError(Exception):
    """The node did not reply within the time limit."""


class ConnectionLostError(Exception):
    """The node closed the connection before its reply was complete, or sent another protocol."""


class HttpRequest(Struct, frozen=True):
    """A request, with its limits."""

    method: str
    target: str
    headers: Sequence[tuple[str, str]]
    body: bytes
    timeout_s: float
    """The limit for the first byte of the reply. Each byte that arrives extends it (`TransferTime`)."""
    first_s: float
    """Additional seconds for the first byte: the node may wait, or the request is large."""
    limit_bytes: int


class Connection(Protocol):
    """A connection to one node, opened by its first exchange."""

    @property
    def is_kept(self) -> bool:
        """Return True if the next request may use the open connection."""

    async def exchange(self, request: HttpRequest) -> tuple[int, bytes]:
        """Return status and body of the reply; raise the errors of this module."""

    async def aclose(self) -> None:
        """Close the connection, if it is open."""


def check_path(path: Path) -> int:
    """Return the user that may listen on the socket at `path`; raise `UntrustedPathError` and `OSError`."""
    # Check this first, so that a missing socket is reported as missing, not as untrusted.
    path.stat()
    facts = facts_about_node(path)
    check_control_socket(path, facts)
    return facts.user_id


def unreached(path: Path, error: BaseException | None) -> ControlError:
    """Return the error that explains a failed connection to the socket at `path`."""
    match error:
        case FileNotFoundError():
            return ControlError(f"no node runs at {path}; start one, or name another with --node")
        case ConnectionRefusedError():
            return ControlError(f"the node of {path} no longer runs; start it again")
        case PermissionError():
            return ControlError(f"{path} may only be used by the node's user")
        case OSError(strerror=str(reason)):
            return ControlError(f"cannot reach a node at {path}: {reason}")
        case _:
            return ControlError(f"cannot reach a node at {path}: {error}")


def too_long(address: object, limit_bytes: int) -> ControlError:
    """Return the error of a reply beyond the limit."""
    return ControlError(f"the node at {address} sent more than {limit_bytes} bytes")
