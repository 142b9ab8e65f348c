"""The certificate of the control endpoint on TCP, which curl, Prometheus and browsers verify.

    state directory/control.key    certificate and private key, 0600     made at the first start that needs it
                    control.crt    the certificate alone, 0644           the copy for clients

The certificate for connections between nodes lacks names and an end date (`consensus.net.tls`), and browsers do not
accept it. So the control endpoint has another certificate. It contains the address of `control.listen`, the names in
`control.names`, and the loopback addresses. If the endpoint listens on every address, the certificate contains this
machine's name and the addresses of its interfaces. An operator with a certificate of an authority sets
`control.certificate` instead.

*Its dates count*, because curl, Python and browsers compare them with their clocks. This machine's clock may have been
wrong at the creation. So the node checks both dates, and the time between them, at the start and each minute while it
runs. In a farm the node uses log time, which follows the clocks of a majority. After a renewal, new connections use the
new certificate, and clients with a copy of `control.crt` need a new copy.

The certificate is not an authority's (`CA:FALSE`), and it lacks a key usage. OpenSSL rejects a self-signed certificate
with a key usage but without the right to sign, and Firefox rejects a server whose certificate is an authority's.
"""

import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, TypeAlias

import psutil
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bridge.node.security.control_socket import ControlSocketError
from bridge.node.security.key_files import KeyFileError, read_private_file
from consensus.net import NodeCertificate
from consensus.storage import replace_file
from gossip import Address

LOG = logging.getLogger("garlicfarm")
KEY_FILE: Final = "control.key"
CERTIFICATE_FILE: Final = "control.crt"
_FILE_LIMIT_BYTES: Final = 64 * 1024
_COMMON_NAME: Final = "garlicfarm control endpoint"
_LIFETIME: Final = timedelta(days=820)
"""Some systems refuse a server's certificate of more than 825 days, even a trusted one."""
_RENEWED_BEFORE: Final = timedelta(days=30)
_BACKDATED: Final = timedelta(days=2)
"""The validity begins this long before the creation, because a client's clock may be slow."""
LOOK_EVERY_S: Final = 60.0
_ALWAYS: Final = ("localhost", "127.0.0.1", "::1")

LATEST_S: Final = 220_000_000_000
"""Seconds; the year 8941: the end of a certificate made then is still a valid date."""

_Names: TypeAlias = tuple[x509.GeneralName, ...]


def control_certificate(
    state_dir: Path, address: Address, names: Iterable[str] = (), now: datetime | None = None
) -> NodeCertificate:
    """Return the node's own certificate; make a new one unless the present one is suitable.

    `now` replaces this machine's clock. Raise `ControlSocketError` and `OSError`.
    """
    path = state_dir / KEY_FILE
    required_names = _general_names(address.host, names)
    certificate, now = _read(path), now or datetime.now(UTC)
    if (
        certificate is None
        or not set(required_names) <= set(_names_in(certificate))
        or not _is_current(certificate, now)
    ):
        certificate = _make(path, required_names, now)
    _publish(state_dir, certificate)
    return NodeCertificate(path, certificate.fingerprint(hashes.SHA256()))


def renew_control_certificate(state_dir: Path, now: datetime) -> bool:
    """Make the certificate again with the same names if it is not valid at `now`; return True if it was made.

    Raise `ControlSocketError` and `OSError`.
    """
    certificate = _read(state_dir / KEY_FILE)
    if certificate is None or _is_current(certificate, now):
        return False
    _publish(state_dir, _make(state_dir / KEY_FILE, _names_in(certificate), now))
    return True


async def keep_control_certificate(
    state_dir: Path, context: ssl.SSLContext, now_ms: Callable[[], int], renewed: Callable[[], None]
) -> None:
    """Renew the certificate when necessary, until canceled. `context` is the endpoint's TLS context."""

    def renew(now: datetime) -> bool:
        made = renew_control_certificate(state_dir, now)
        if made:
            # New connections get the new certificate; open ones keep the old one.
            context.load_cert_chain(state_dir / KEY_FILE)
        return made

    while True:
        await trio.sleep(LOOK_EVERY_S)
        now = datetime.fromtimestamp(min(now_ms() / 1000, LATEST_S), UTC)
        try:
            if await trio.to_thread.run_sync(renew, now):
                renewed()
        except OSError as error:
            LOG.warning("the certificate of the control endpoint cannot be renewed: %s", error)


def _general_names(host: str, names: Iterable[str]) -> _Names:
    found = dict.fromkeys([*_listened(host), *names, *_ALWAYS])
    return tuple(map(_general_name, found))


def _listened(host: str) -> Iterator[str]:
    try:
        everywhere = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        everywhere = False
    if not everywhere:
        yield host
        return
    yield socket.gethostname()
    with suppress(OSError, psutil.Error):
        for addresses in psutil.net_if_addrs().values():
            for each in addresses:
                if each.family in (socket.AF_INET, socket.AF_INET6) and "%" not in each.address:
                    yield each.address


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError as error:
        raise ControlSocketError(
            f"{name!r} is not valid in a certificate: put host names in ASCII and addresses into control.names"
        ) from error


def _read(path: Path) -> x509.Certificate | None:
    if not path.exists():
        return None
    try:
        pem = read_private_file(path, _FILE_LIMIT_BYTES).encode()
        serialization.load_pem_private_key(pem, None)
        return x509.load_pem_x509_certificate(pem)
    except KeyFileError as error:
        raise ControlSocketError(f"{error}; or remove it, and the node makes one") from error
    except (ValueError, TypeError) as error:
        raise ControlSocketError(f"{path} is damaged: remove it, and the node makes another") from error


def _names_in(certificate: x509.Certificate) -> _Names:
    try:
        return tuple(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (x509.ExtensionNotFound, ValueError):
        return ()


def _is_current(certificate: x509.Certificate, now: datetime) -> bool:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return begins <= now and ends - now >= _RENEWED_BEFORE and ends - begins <= _LIFETIME


def _publish(state_dir: Path, certificate: x509.Certificate) -> None:
    replace_file(state_dir / CERTIFICATE_FILE, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)


def _make(path: Path, names: _Names, now: datetime) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _COMMON_NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now - _BACKDATED + _LIFETIME)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    replace_file(path, pem)
    return certificate
