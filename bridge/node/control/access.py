"""The rights of TCP clients, if an operator has opened the control endpoint to other machines.

    [control] listen = "192.168.7.5:7650"

    control.read.token     permits reading: every GET
    control.admin.token    permits all requests, as the Unix socket does
    control.crt            the endpoint's certificate, without its key (`bridge.node.control.control_certificate`)

The node makes each token from 32 random bytes, in a file of mode 0600, at its first start with `listen`. A client sends
a token as `Authorization: Bearer …`. To change a token, remove its file and restart the node. Comparing a token takes
constant time. Wrong tokens do not lock a client out, because a guess cannot find one of 2^256 values.
"""

import hmac
import os
import secrets
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from bridge.api.control_routes import HEALTHZ, PAGE, READYZ, Access
from bridge.node.security.control_socket import ControlSocketError
from bridge.node.security.key_files import KeyFileError, read_private_file
from bridge.node.settings.configuration import ControlSettings
from consensus.net import CertificateError, operator_certificate
from consensus.storage import replace_file
from gossip import Address

READ_TOKEN_FILE = "control.read.token"  # noqa: S105 - the name of the file that holds it
ADMIN_TOKEN_FILE = "control.admin.token"  # noqa: S105 - likewise
TOKEN_BYTES = 32
HEALTH_TARGETS = frozenset(each.path.encode() for each in (HEALTHZ, READYZ))
PAGE_TARGETS = frozenset({PAGE.path.encode()})
TOKEN_LEAST_CHARACTERS = 32
_SCHEME = "bearer "
_FILE_LIMIT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class RemoteAccess:
    """The address for TCP clients, and the tokens that they must send."""

    address: Address
    context: ssl.SSLContext
    """The context of accepted connections. Its certificate may be replaced while the node runs."""
    read_token: str = field(repr=False)
    admin_token: str = field(repr=False)
    open_targets: frozenset[bytes] = frozenset()
    """The targets without a token: the node's health, if the operator permits it, and a page without data."""

    def granted(self, authorization: str) -> Access:
        """Return the rights that a request's header `Authorization` grants."""
        if not authorization.lower().startswith(_SCHEME):
            return Access.NONE
        shown = authorization[len(_SCHEME) :].strip().encode("latin-1", "replace")
        if hmac.compare_digest(shown, self.admin_token.encode()):
            return Access.ADMIN
        return Access.READ if hmac.compare_digest(shown, self.read_token.encode()) else Access.NONE


def open_remote_access(state_dir: Path, settings: ControlSettings | None) -> RemoteAccess | None:
    """Read or make tokens and certificate, if there are settings; raise `ControlSocketError`."""
    if settings is None:
        return None
    from bridge.node.control.control_certificate import control_certificate  # noqa: PLC0415 - most nodes do not need it

    try:
        certificate = (
            control_certificate(state_dir, settings.listen, settings.names)
            if settings.certificate is None
            else operator_certificate(settings.certificate)
        )
        read, admin = (_token(state_dir / name) for name in (READ_TOKEN_FILE, ADMIN_TOKEN_FILE))
    except CertificateError as error:
        raise ControlSocketError(f"control.certificate: {error}") from error
    except OSError as error:
        if isinstance(error, ControlSocketError):
            raise
        raise ControlSocketError(f"certificate and tokens in {state_dir} cannot be used: {error}") from error
    health = HEALTH_TARGETS if settings.open_health else frozenset()
    page = PAGE_TARGETS if settings.page else frozenset()
    return RemoteAccess(settings.listen, certificate.server_context(), read, admin, health | page)


def _token(path: Path) -> str:
    if not os.path.lexists(path):
        made = secrets.token_urlsafe(TOKEN_BYTES)
        replace_file(path, made.encode() + b"\n")
        return made
    try:
        text = read_private_file(path, _FILE_LIMIT_BYTES).strip()
    except KeyFileError as error:
        raise ControlSocketError(f"{error}; or remove it, and the node makes one") from error
    if len(text) < TOKEN_LEAST_CHARACTERS or not (text.isascii() and text.isprintable()) or " " in text:
        raise ControlSocketError(
            f"{path} does not contain a token of {TOKEN_LEAST_CHARACTERS} or more characters: remove it, and the node"
            " creates one"
        )
    return text
