"""A node's certificate, and TLS between nodes that pin each other's certificates.

By default a node signs its own certificate on first start. Gossip carries the SHA-256 of the certificate (the
*fingerprint*), signed by the node's identity. A client accepts exactly the certificate with that fingerprint. Names in
a certificate would prove nothing here and would reveal the program to an observer, so the only name is `localhost`. An
authority for each farm, the usual solution, would add a private key, and no node would detect its theft. An operator
can use an existing authority instead (`authority_context`); then a client checks names and dates.

All self-signed certificates of nodes have the same dates, from 1970 to 9999. A client does not compare these dates with
its clock (docs/explanation/security.md, "Bounds").

The certificate and its key are in one file of mode 0600. It is written under another name and renamed, so a crash
leaves either the old file or the new one.
"""

import hashlib
import hmac
import shlex
import ssl
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import trio
from msgspec import Struct

from consensus.net.tls_stream import TlsStream
from consensus.storage.durable_file import replace_file
from consensus.storage.file_access import access_advice

CERTIFICATE_FILE = "tls.pem"
_FIXED_DATES = b"0 \x17\r700101000000Z\x18\x0f99991231235959Z"
"""Both dates of a node's own certificate in DER."""
_PEM_BEGIN, _PEM_END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


class CertificateError(Exception):
    """The certificate file cannot be used; the text contains the reason, and the remedy if it is known."""


class UntrustedCertificateError(Exception):
    """A server's certificate is unexpected, or fails verification by the configured authorities."""


class NodeCertificate(Struct, frozen=True):
    """This node's certificate file, and the fingerprint that other nodes use to verify it."""

    path: Path
    fingerprint: bytes

    def dates(self) -> tuple[datetime, datetime]:
        """Return the start and end of validity from the current file; raise CertificateError if it cannot be read."""
        from consensus.net.x509_files import certificate_in  # noqa: PLC0415 - most nodes do not need it

        try:
            return certificate_in(self.path.read_bytes())[:2]
        except (OSError, ValueError) as error:
            raise CertificateError(f"the dates of {self.path} cannot be read: {error}") from error

    def server_context(self) -> ssl.SSLContext:
        """Return the TLS context for accepting connections."""
        return server_context(self.path)


def load_or_create_certificate(state_dir: Path) -> NodeCertificate:
    """Return the node's certificate. Create it on the first start, and again if its dates are not the fixed ones.

    Earlier versions took its dates from the clock, and nodes that still run them compare the dates with their own
    clocks.
    """
    path = state_dir / CERTIFICATE_FILE
    try:
        pem = path.read_bytes()
    except FileNotFoundError:
        return _create(path)
    except OSError as error:
        raise CertificateError(
            f"{path} cannot be read ({error.strerror or error}){access_advice(path, error)}"
        ) from error
    _check_private(path)
    try:
        der = first_certificate(pem)
        _load_key(_context(ssl.PROTOCOL_TLS_SERVER), path)
    except (ssl.SSLError, ValueError) as error:
        raise CertificateError(
            f"{path} is damaged: move it away; the node then creates a new one and announces its fingerprint"
        ) from error
    return NodeCertificate(path, hashlib.sha256(der).digest()) if _FIXED_DATES in der else _create(path)


@cache
def client_context() -> ssl.SSLContext:
    """Return the TLS context for connecting. It verifies nothing: `check_pinned` must follow the handshake.

    All connections share it, because its creation takes as much processor time as a handshake.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def server_context(certificate_file: Path, client_ca_file: Path | None = None) -> ssl.SSLContext:
    """Return the TLS context for a listener. The file holds the certificate, its chain and its key, in PEM.

    With `client_ca_file` a client must present a certificate that one of these authorities has signed. Raises
    `CertificateError`.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    # No client resumes a session here, and a session ticket would stay unread by a client that only sends.
    context.num_tickets = 0
    _load_chain(context, certificate_file)
    if client_ca_file is not None:
        _load_authorities(context, client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def authority_context(ca_file: Path, certificate_file: Path | None = None) -> ssl.SSLContext:
    """Return the TLS context for servers whose certificates an authority in `ca_file` has signed for the dialed host.

    A server that requires a client certificate receives `certificate_file`. Raises `CertificateError`.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    _load_authorities(context, ca_file)
    if certificate_file is not None:
        _load_chain(context, certificate_file)
    return context


def check_pinned(certificate: bytes | None, fingerprint: bytes) -> None:
    """Accept only the certificate (DER) with this SHA-256. Its dates do not count."""
    found = hashlib.sha256(certificate or b"").digest()
    if certificate is None or not hmac.compare_digest(found, fingerprint):
        raise UntrustedCertificateError(
            f"the server presented certificate {found.hex()[:16]}…, but gossip announced {fingerprint.hex()[:16]}…: "
            "either the server has just created a new one, or another program listens at its address",
        )


async def secured(transport: trio.SocketStream, fingerprint: bytes) -> TlsStream:
    """Return TLS over a connected socket; the other side's certificate is checked before any byte is sent."""
    stream = TlsStream(transport, client_context(), server_side=False)
    await stream.do_handshake()
    check_pinned(stream.peer_certificate(), fingerprint)
    return stream


async def secured_by_authority(transport: trio.SocketStream, authority: ssl.SSLContext, host: str) -> TlsStream:
    """Return TLS over a connected socket to `host`, whose certificate an authority must have signed for that name."""
    stream = TlsStream(transport, authority, server_side=False, name=host)
    try:
        await stream.do_handshake()
    except ssl.SSLCertVerificationError as error:
        raise UntrustedCertificateError(
            f"the server's certificate is refused ({error.verify_message}): it must be signed by an authority of "
            f"[consensus] ca_file, be valid now ({datetime.now(UTC):%Y-%m-%d} by this node's clock), and name {host}. "
            "If the certificate file is correct, another program may be listening at that address",
        ) from error
    return stream


def operator_certificate(path: Path) -> NodeCertificate:
    """Return a certificate signed by an authority: the file holds it, its chain to the authority, and the key."""
    from consensus.net.x509_files import certificate_in, check_key_in  # noqa: PLC0415 - most nodes do not need it

    try:
        pem = path.read_bytes()
        _check_private(path)
        certificate = certificate_in(pem)
        check_key_in(pem)
    except OSError as error:
        raise CertificateError(
            f"{path} cannot be read ({error.strerror or error}){access_advice(path, error)}"
        ) from error
    except (ValueError, TypeError) as error:
        raise CertificateError(f"{path} does not hold a certificate and its unencrypted private key in PEM") from error
    now = datetime.now(UTC)
    if certificate.ends < now:
        raise CertificateError(
            f"the certificate in {path} expired on {certificate.ends:%Y-%m-%d}: have the authority sign "
            f"a new one, or set this machine's clock if it is not {now:%Y-%m-%d}"
        )
    return NodeCertificate(path, certificate.fingerprint)


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _check_private(path: Path) -> None:
    if path.stat().st_mode & 0o077:
        raise CertificateError(f"{path} holds a private key and others may read it: chmod 600 {shlex.quote(str(path))}")


def _load_chain(context: ssl.SSLContext, file: Path) -> None:
    try:
        _check_private(file)
        _load_key(context, file)
    except OSError as error:
        remedy = _advice(file, error) or (
            ": it must hold a certificate, its chain and its unencrypted private key, in PEM"
        )
        raise CertificateError(f"{file} cannot be used ({error.strerror or error}){remedy}") from error


def _load_authorities(context: ssl.SSLContext, file: Path) -> None:
    try:
        context.load_verify_locations(cafile=file)
    except OSError as error:
        remedy = _advice(file, error) or ": it must be a readable file with the authority's certificate in PEM"
        raise CertificateError(f"{file} cannot be used ({error.strerror or error}){remedy}") from error


def _advice(file: Path, error: OSError) -> str:
    """Return the advice about access; empty for an error of OpenSSL, whose number is not the system's."""
    return "" if isinstance(error, ssl.SSLError) else access_advice(file, error)


def _load_key(context: ssl.SSLContext, file: Path) -> None:
    """Load a chain and its key. An encrypted key is an error; OpenSSL would prompt for its password."""
    context.load_cert_chain(file, password="")


def first_certificate(pem: bytes) -> bytes:
    """Return the first certificate in DER; raise ValueError if it is missing."""
    text = pem.decode("latin-1")
    begin = text.index(_PEM_BEGIN)
    return ssl.PEM_cert_to_DER_cert(text[begin : text.index(_PEM_END, begin) + len(_PEM_END)])


def _create(path: Path) -> NodeCertificate:
    from consensus.net.x509_files import new_certificate  # noqa: PLC0415 - only the first start needs it

    pem = new_certificate()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, pem)
    except OSError as error:
        raise CertificateError(
            f"{path} cannot be written ({error.strerror or error}): check the directory and disk"
        ) from error
    return NodeCertificate(path, hashlib.sha256(first_certificate(pem)).digest())
