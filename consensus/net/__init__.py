"""What any protocol needs of a network: TLS, bounded acceptance, delays before retries; and a network in memory.

What is named here is fetched when it is first used: the network in memory needs no cryptography.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from consensus.net.accepting import AcceptOptions, AcceptQueue, DropReason, KnownSources, source_of
    from consensus.net.backoff import Backoff
    from consensus.net.memory import ALL_EXTENSIONS, MEMORY, MemoryNetwork, MemoryTransport
    from consensus.net.tls import (
        CERTIFICATE_FILE,
        CertificateError,
        NodeCertificate,
        client_context,
        load_or_create_certificate,
        operators_certificate,
    )
    from consensus.net.tls_stream import TlsStream
    from consensus.net.transfer_time import TransferTime, time_for

__all__ = [
    "ALL_EXTENSIONS",
    "CERTIFICATE_FILE",
    "MEMORY",
    "AcceptOptions",
    "AcceptQueue",
    "Backoff",
    "CertificateError",
    "DropReason",
    "KnownSources",
    "MemoryNetwork",
    "MemoryTransport",
    "NodeCertificate",
    "TlsStream",
    "TransferTime",
    "client_context",
    "load_or_create_certificate",
    "operators_certificate",
    "source_of",
    "time_for",
]

_HOMES: Final = {
    "consensus.net.accepting": ("AcceptOptions", "AcceptQueue", "DropReason", "KnownSources", "source_of"),
    "consensus.net.backoff": ("Backoff",),
    "consensus.net.memory": ("ALL_EXTENSIONS", "MEMORY", "MemoryNetwork", "MemoryTransport"),
    "consensus.net.tls": (
        "CERTIFICATE_FILE",
        "CertificateError",
        "NodeCertificate",
        "client_context",
        "load_or_create_certificate",
        "operators_certificate",
    ),
    "consensus.net.tls_stream": ("TlsStream",),
    "consensus.net.transfer_time": ("TransferTime", "time_for"),
}

if not TYPE_CHECKING:  # mypy would take any name for one of the face

    def __getattr__(name: str) -> Any:
        """Fetch a public name from its home."""
        for home, names in _HOMES.items():
            if name in names:
                return getattr(import_module(home), name)
        raise AttributeError(f"module 'consensus.net' has no attribute {name!r}")
