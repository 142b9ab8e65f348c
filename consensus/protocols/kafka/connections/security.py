"""Who may connect, and who a connection is: TLS, a client's certificate, or a password by SCRAM.

    listener                    the connection's principal
    plain                       none
    TLS                         none; the client checks the listener's certificate
    TLS with `client_ca_file`   the subject of the client's certificate, `User:CN=…`, as Kafka names it
    SASL, over plain or TLS     `User:` and the name that was proved by SCRAM (`wire.scram`)

Certificates are signed by an authority that the operator names, as Kafka has it: the farm's pinned fingerprints are not
known to Kafka's own programs. TLS is 1.3, which Kafka's clients have spoken since 2.6; `TlsStream` needs it.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

import trio
from cryptography import x509

from consensus.net.tls import CertificateError
from consensus.net.tls_stream import TlsStream
from consensus.protocols.kafka.wire.scram import Credentials, Mechanism


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """What a listener asks of those who connect; by default nothing."""

    tls: ssl.SSLContext | None = None
    """From `server_context`."""
    credentials: Credentials | None = None
    """Of users who log in by SASL; None: none needs to, or can."""
    mechanisms: tuple[Mechanism, ...] = (Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512)


@dataclass(frozen=True, slots=True)
class Login:
    """A user with a password, for connections to other servers."""

    user: str
    password: str = field(repr=False)
    mechanism: Mechanism = Mechanism.SCRAM_SHA_512


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """How to connect to a listener; by default plainly."""

    tls: ssl.SSLContext | None = None
    """From `client_context`."""
    login: Login | None = None


def server_context(certificate_file: Path, client_ca_file: Path | None = None) -> ssl.SSLContext:
    """TLS for a listener. The file holds the certificate, its chain and its key, in PEM.

    With `client_ca_file` a client must show a certificate that one of these authorities has signed.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # A ticket is data that a client which only sends would never read.
    context.num_tickets = 0
    _load_chain(context, certificate_file)
    if client_ca_file is not None:
        _load_authorities(context, client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(ca_file: Path, certificate_file: Path | None = None) -> ssl.SSLContext:
    """TLS for connecting to listeners whose certificates `ca_file` has signed, for the host that is connected to.

    `certificate_file` is shown to a listener that asks for one.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load_authorities(context, ca_file)
    if certificate_file is not None:
        _load_chain(context, certificate_file)
    return context


def certificate_principal(stream: trio.abc.Stream) -> str | None:
    """The name of the one whose certificate was shown and checked; None: none was asked for."""
    der = stream.peer_certificate() if isinstance(stream, TlsStream) else None
    if der is None:
        return None
    try:
        return "User:" + x509.load_der_x509_certificate(der).subject.rfc4514_string()
    except ValueError as error:
        # TLS checks the bytes of a certificate less closely than this.
        raise trio.BrokenResourceError(f"the client's certificate cannot be read: {error}") from error


def _load_chain(context: ssl.SSLContext, file: Path) -> None:
    try:
        if file.stat().st_mode & 0o077:
            raise CertificateError(f"{file} holds a private key and others may read it: chmod 600 {file}")
        context.load_cert_chain(file)
    except (OSError, ssl.SSLError) as error:
        raise CertificateError(
            f"{file} cannot be used ({error.strerror or error}): it must hold a certificate, its chain and its "
            "unencrypted private key, in PEM"
        ) from error


def _load_authorities(context: ssl.SSLContext, file: Path) -> None:
    try:
        context.load_verify_locations(cafile=file)
    except (OSError, ssl.SSLError) as error:
        raise CertificateError(
            f"{file} cannot be used ({error.strerror or error}): it must be a readable file with the authority's "
            "certificate in PEM"
        ) from error
