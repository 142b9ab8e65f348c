"""Authentication of connections: TLS, a client's certificate, or a password by SCRAM.

    listener                    the connection's principal
    plain                       none
    TLS                         none; the client checks the listener's certificate
    TLS with `client_ca_file`   the subject of the client's certificate, `User:CN=…`, as Kafka names it
    SASL, over plain or TLS     `User:` and the name proved by SCRAM (`wire.scram`)

Certificates are signed by an authority that the operator names, as in Kafka: Kafka's own programs do not know the
farm's pinned fingerprints. TLS is 1.3, which Kafka's clients support since 2.6; `TlsStream` needs it.
"""

import ssl
from dataclasses import dataclass, field

import trio
from msgspec import Struct

from consensus.net.tls_stream import TlsStream
from consensus.protocols.kafka.wire.scram import Mechanism, UserSource


class ListenerSecurity(Struct, frozen=True):
    """A listener's requirements for clients; by default none."""

    tls: ssl.SSLContext | None = None
    """From `consensus.net.server_context`."""
    credentials: UserSource | None = None
    """Credentials of users who log in by SASL; None if a login is neither required nor possible."""
    mechanisms: tuple[Mechanism, ...] = (Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512)


@dataclass(frozen=True, slots=True)
class Login:
    """A user with a password, for connections to other servers."""

    user: str
    password: str = field(repr=False)
    mechanism: Mechanism = Mechanism.SCRAM_SHA_512


class ClientSecurity(Struct, frozen=True):
    """Security of connections to a listener; by default none."""

    tls: ssl.SSLContext | None = None
    """From `consensus.net.authority_context`."""
    login: Login | None = None


def certificate_principal(stream: trio.abc.Stream) -> str | None:
    """Return the name in the client's checked certificate; None if none was required."""
    der = stream.peer_certificate() if isinstance(stream, TlsStream) else None
    if der is None:
        return None
    from consensus.net.x509_files import subject_of  # noqa: PLC0415 - only clients with certificates need it

    try:
        return "User:" + subject_of(der)
    except ValueError as error:
        # TLS accepts some certificates whose bytes this parser rejects.
        raise trio.BrokenResourceError(f"the client's certificate cannot be read: {error}") from error
