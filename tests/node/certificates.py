"""Certificate authorities and certificates for tests, generated when a test needs them."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from consensus.net.tls import NodeCertificate


class Authority:
    """A certificate authority. Peers that trust `file` accept its certificates."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        now = datetime.now(UTC)
        certificate = (
            _builder(self._name, self._name, self._key, now - timedelta(days=30), now + timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def certificate(self, host: str, *, days: tuple[int, int] = (-1, 7)) -> NodeCertificate:
        """Return a certificate for `host`, a name or an address. It is valid from and until these days from now."""
        return _written(self._directory, host, days, self._name, self._key)


def self_signed(directory: Path, *, days: tuple[int, int]) -> NodeCertificate:
    """Return a self-signed certificate like a node's own, with other dates."""
    return _written(directory, "localhost", days, None, None)


def _written(
    directory: Path,
    host: str,
    days: tuple[int, int],
    issuer: x509.Name | None,
    issuer_key: ec.EllipticCurvePrivateKey | None,
) -> NodeCertificate:
    key, subject, now = ec.generate_private_key(ec.SECP256R1()), _named(host), datetime.now(UTC)
    try:
        name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        name = x509.DNSName(host)
    certificate = (
        _builder(subject, issuer or subject, key, now + timedelta(days=days[0]), now + timedelta(days=days[1]))
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .sign(issuer_key or key, hashes.SHA256())
    )
    path = directory / f"{len([*directory.iterdir()])}.pem"
    path.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    path.chmod(0o600)
    return NodeCertificate(path, certificate.fingerprint(hashes.SHA256()))


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, first: datetime, last: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(first)
        .not_valid_after(last)
    )
