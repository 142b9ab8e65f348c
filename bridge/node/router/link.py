"""Where a router listens, and how a stream to it is opened: plain or TLS, never plain beyond private networks.

I2CP and I2PControl carry passwords and say which destinations belong to whom. So plain TCP goes to loopback and private
addresses only, and a plain I2PControl (its password opens the whole router) to loopback only. A router's certificate is
signed by itself: it is pinned by a file, or, on this machine, where no attacker can stand between, not checked.
"""

import ssl
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import trio

from consensus.net import connection_failure

CONNECT_TIMEOUT_S: Final = 5.0
SHOWN_CHARACTERS: Final = 200


class RouterLost(Exception):  # noqa: N818 -- a state of the world, told in words
    """The router cannot be reached, went away, or does not speak the protocol; the text says which."""


class Software(Enum):
    """Which router it is; they differ in small things that matter."""

    JAVA = "java"
    I2PD = "i2pd"


@dataclass(frozen=True, slots=True)
class Link:
    """One of the router's doors. With a `certificate` (PEM) it is TLS, and that certificate must be shown."""

    host: str
    port: int
    certificate: Path | None = None
    unchecked_tls: bool = False
    """TLS without a look at the certificate: to loopback."""

    def __str__(self) -> str:
        """As an operator writes it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether it is on this machine."""
        return ip_address(self.host).is_loopback


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who asks. The password is shown nowhere."""

    username: str
    password: str = field(repr=False)


CONTROL_PATHS: Final = {Software.JAVA: "/jsonrpc/", Software.I2PD: "/"}


@dataclass(frozen=True, slots=True)
class ControlAccess:
    """How to speak to a router's I2PControl."""

    link: Link
    software: Software
    password: str = field(repr=False)
    path: str = "/"


async def open_stream(link: Link) -> trio.abc.Stream:
    """A stream to the router; raises `RouterLost`."""
    context = await read_tls_context(link)
    try:
        with trio.fail_after(CONNECT_TIMEOUT_S):
            return await _open(link, context)
    except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
        raise unreached(link, error) from error


def unreached(link: Link, error: BaseException | None) -> RouterLost:
    """What to say of an error while connecting to the router."""
    match error:
        case trio.BrokenResourceError():
            # The connection was there; its TLS handshake was not.
            cause = error.__cause__
            why = cause.reason if isinstance(cause, ssl.SSLError) else "it closed the connection"
            return RouterLost(f"{link} does not speak TLS, or shows another certificate: {why}")
        case OSError():
            return RouterLost(f"nothing answers at {link}: {connection_failure(error)}")
        case _:
            return RouterLost(f"nothing answers at {link} within {CONNECT_TIMEOUT_S:g} s")


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
    """`tls_context`, with a thread for the certificate's file if there is one."""
    if link.certificate is None:
        return tls_context(link)
    return await trio.to_thread.run_sync(tls_context, link)


def tls_context(link: Link) -> ssl.SSLContext | None:
    """What the router must show, None for a plain link; raises `RouterLost` if the certificate's file is none."""
    if link.certificate is None and not link.unchecked_tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The name in a router's own certificate is no address; the certificate itself is compared.
    context.check_hostname = False
    if link.certificate is None:
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        context.load_verify_locations(link.certificate)
    except OSError as error:
        raise RouterLost(
            f"{link.certificate} cannot be used: a certificate in PEM is needed: {connection_failure(error)}"
        ) from error
    # The certificate itself is trusted, whatever its issuer.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def shown(text: str) -> str:
    """A stranger's text as it may stand in an alarm: short, and without control characters."""
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return printable if len(printable) <= SHOWN_CHARACTERS else f"{printable[:SHOWN_CHARACTERS]}…"
