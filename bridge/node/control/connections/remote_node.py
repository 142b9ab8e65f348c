"""The address of a node on TCP, made of its URL, the file of a token, and the file of a certificate.

A node signs the certificate of its control endpoint itself, unless an operator configures an authority's certificate.
So `--certificate` accepts both. A node's own certificate (`control.crt`) is compared as a whole, so its names do not
matter. A certificate signed by an authority must be valid for the host in the URL. Without the option, the client
trusts the system's authorities. One file may contain the certificates of several nodes.
"""

import ssl
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from cryptography import x509

from bridge.node.control.connections.node_address import READ_TOKEN, NodeAddressError, RemoteNode
from consensus.storage import access_advice

DEFAULT_PORT: Final = 7650
_FILE_LIMIT_BYTES: Final = 1024 * 1024


def remote_node(url: str, token_file: Path | None, certificate_file: Path | None) -> RemoteNode:
    """Return the node of a URL; raise `NodeAddressError`."""
    parts = _parts(url)
    if token_file is None:
        raise NodeAddressError(f"{url} needs a token: copy a file of that node, {READ_TOKEN}; name it by --token-file")
    return RemoteNode(
        host=parts.hostname or "",
        port=parts.port or DEFAULT_PORT,
        token=_token(token_file),
        token_file=token_file,
        context=_context(certificate_file),
    )


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        known = parts.scheme == "https" and parts.hostname is not None and (parts.port is None or parts.port > 0)
    except ValueError as error:
        raise NodeAddressError(f"{url} is not an address of a node: {error}") from error
    if not known or parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise NodeAddressError(f"{url} is not an address of a node: write it as https://HOST:PORT, or give a path")
    return parts


def _token(path: Path) -> str:
    token = _read(path).decode("utf-8", "replace").strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise NodeAddressError(f"{path} does not contain a token: copy a file of the node, {READ_TOKEN}")
    return token


def _context(certificate_file: Path | None) -> ssl.SSLContext:
    if certificate_file is None:
        context = ssl.create_default_context()
    else:
        pem = _read(certificate_file)
        try:
            certificates = x509.load_pem_x509_certificates(pem)
            context = ssl.create_default_context(cadata=pem.decode("ascii"))
        except (ValueError, ssl.SSLError) as error:
            raise NodeAddressError(
                f"{certificate_file} does not contain a certificate in PEM: copy the node's file control.crt"
            ) from error
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = any(map(_is_authority, certificates))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_LIMIT_BYTES + 1)
    except OSError as error:
        advice = access_advice(path, error)
        raise NodeAddressError(f"{path} cannot be read: {error.strerror or error}{advice}") from error
    if len(data) > _FILE_LIMIT_BYTES:
        raise NodeAddressError(f"{path} is larger than {_FILE_LIMIT_BYTES} bytes: it is not a token or a certificate")
    return data
