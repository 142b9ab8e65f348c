"""Certificates with the library `cryptography`: creation, dates and fingerprints.

    first start, other dates ─▶ new_certificate()
    an operator's file       ─▶ certificate_in(pem), check_key_in(pem)
    a client of Kafka        ─▶ subject_of(der)

The library's modules use 1.5 MB of memory. A restarted node does not need them for TLS, which is a part of Python's
`ssl`. So other modules import this one at the first call.
"""

from datetime import UTC, datetime
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_COMMON_NAME = "localhost"
_BEGINS = datetime(1970, 1, 1, tzinfo=UTC)
_ENDS = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""RFC 5280, section 4.1.2.5: a certificate with this value lacks a well-defined expiration date."""


class CertificateFacts(NamedTuple):
    """Validity and SHA-256 of a certificate."""

    begins: datetime
    ends: datetime
    fingerprint: bytes


def new_certificate() -> bytes:
    """Return a certificate with the fixed dates, signed by its own new key, and the key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _COMMON_NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGINS)
        .not_valid_after(_ENDS)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def certificate_in(pem: bytes) -> CertificateFacts:
    """Return the facts of the first certificate; raise ValueError if it cannot be read."""
    certificate = x509.load_pem_x509_certificate(pem)
    return CertificateFacts(
        certificate.not_valid_before_utc, certificate.not_valid_after_utc, certificate.fingerprint(hashes.SHA256())
    )


def check_key_in(pem: bytes) -> None:
    """Raise ValueError or TypeError unless the PEM contains an unencrypted private key."""
    serialization.load_pem_private_key(pem, None)


def subject_of(der: bytes) -> str:
    """Return the name in a certificate; raise ValueError if it cannot be read."""
    return x509.load_der_x509_certificate(der).subject.rfc4514_string()
