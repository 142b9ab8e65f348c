"""The address of a router and its streams: plain or TLS, never plain beyond private networks.

I2CP and I2PControl carry passwords, and show the owner of each destination. So a node uses plain TCP only to loopback
and private addresses. It uses plain I2PControl, whose password controls the router, only to loopback. A router signs
its certificate itself. A file in the settings pins it: the node accepts only the first certificate in this file.
Without a file, I2PControl over TLS is possible only on this machine. The node then does not check the certificate,
because an attacker cannot intercept the connection.
"""

import ssl
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import trio
from msgspec import Struct

from bridge.api.printable import one_line
from consensus import endpoint_text
from consensus.net import connection_failure, first_certificate

CONNECT_TIMEOUT_S: Final = 5.0
I2CP_PORT: Final = 7654
I2PCONTROL_PORT: Final = 7650
"""The default ports of both routers; Java's I2PControl is a plugin."""
SHOWN_CHARACTERS: Final = 200


class RouterLost(Exception):  # noqa: N818 -- a state of the router, described by its text
    """The router is unreachable, ended the connection, or violates the protocol; the text contains the reason."""


class RouterAbsent(RouterLost):
    """The router does not reply at its address: it is stopped, or does not serve that port."""


class Software(Enum):
    """The software of the router, which determines details of its protocols."""

    JAVA = "java"
    I2PD = "i2pd"


class Link(Struct, frozen=True):
    """One address of the router, with or without TLS.

    With a `certificate` (PEM) the connection uses TLS, and the router must present the first certificate in this file.
    """

    host: str
    port: int
    certificate: Path | None = None
    unchecked_tls: bool = False
    """True for TLS without a check of the certificate; permitted only to loopback."""

    def __str__(self) -> str:
        return endpoint_text(self.host, self.port)

    @property
    def is_loopback(self) -> bool:
        """True if the host is a loopback address."""
        return ip_address(self.host).is_loopback


@dataclass(frozen=True, slots=True)
class Credentials:
    """The login. The password is never shown."""

    username: str
    password: str = field(repr=False)


CONTROL_PATHS: Final = {Software.JAVA: "/jsonrpc/", Software.I2PD: "/"}


@dataclass(frozen=True, slots=True)
class ControlAccess:
    """The access to a router's I2PControl."""

    link: Link
    software: Software
    password: str = field(repr=False)
    path: str = "/"


async def open_stream(link: Link) -> trio.abc.Stream:
    """Open a stream to the router; raise `RouterLost`."""
    context = await read_tls_context(link)
    try:
        with trio.fail_after(CONNECT_TIMEOUT_S):
            return await _open(link, context)
    except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
        raise unreached(link, error) from error


def unreached(link: Link, error: BaseException | None) -> RouterLost:
    """Return the error to report for a failed connection to the router."""
    match error:
        case trio.BrokenResourceError():
            # The TCP connection succeeded, but its TLS handshake failed.
            cause = error.__cause__
            why = cause.reason if isinstance(cause, ssl.SSLError) else "it closed the connection"
            if isinstance(cause, ssl.SSLCertVerificationError):
                why += "; pin the router's own certificate, not its authority's"
            return RouterLost(f"{link} does not speak TLS, or shows another certificate: {why}")
        case OSError():
            return RouterAbsent(f"nothing answers at {link}: {connection_failure(error)}")
        case _:
            return RouterAbsent(f"nothing answers at {link} within {CONNECT_TIMEOUT_S:g} s")


async def _open(link: Link, context: ssl.SSLContext | None) -> trio.abc.Stream:
    transport = await trio.open_tcp_stream(link.host, link.port)
    if context is None:
        return transport
    stream = trio.SSLStream(transport, context, server_hostname=link.host, https_compatible=True)
    try:
        await stream.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(transport)
        raise
    return stream


async def read_tls_context(link: Link) -> ssl.SSLContext | None:
    """Return `tls_context`; read the certificate's file, if any, in a thread."""
    if link.certificate is None:
        return tls_context(link)
    return await trio.to_thread.run_sync(tls_context, link)


def tls_context(link: Link) -> ssl.SSLContext | None:
    """Return the TLS context, None for a plain link; raise `RouterLost` for an invalid certificate file."""
    if link.certificate is None and not link.unchecked_tls:
        return None
    context = _PinningContext(ssl.PROTOCOL_TLS_CLIENT)
    # A router's own certificate does not contain its address.
    context.check_hostname = False
    if link.certificate is None:
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        context.pinned = first_certificate(link.certificate.read_bytes())
        context.load_verify_locations(cadata=context.pinned)
    except (OSError, ValueError) as error:
        why = connection_failure(error) if isinstance(error, OSError) else "the file lacks a readable one"
        raise RouterLost(f"{link.certificate} cannot be used: a certificate in PEM is needed: {why}") from error
    # OpenSSL trusts the certificate regardless of its issuer, and also certificates that this one has signed.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


class _PinnedConnection(ssl.SSLObject):
    def do_handshake(self) -> None:
        super().do_handshake()
        if isinstance(self.context, _PinningContext) and self.context.pinned not in {
            None,
            self.getpeercert(binary_form=True),
        }:
            error = ssl.SSLCertVerificationError("the router's certificate is not the pinned one")
            error.reason = "CERTIFICATE_VERIFY_FAILED"
            raise error


class _PinningContext(ssl.SSLContext):
    sslobject_class = _PinnedConnection
    pinned: bytes | None = None


def shown(text: str) -> str:
    """Return an untrusted text for an alarm: short, and without control characters."""
    return one_line(text, SHOWN_CHARACTERS)
