"""A client of the Raft port, written only from the documents: TLS, HTTP, Digest, proof, and raw messages.

It does not share code with the tested server, so an error of the server is not repeated here.
"""

import base64
import hashlib
import os
import re
import socket
import ssl
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

TIMEOUT_S = 60.0
OFFERED = "garlicfarm.raft.v1"


@dataclass(frozen=True)
class RaftPort:
    """The address and credentials of a Raft port."""

    host: str
    port: int
    cluster: str
    user: str
    password: str

    @property
    def path(self) -> str:
        return f"/GarlicFarm/{self.cluster}/1/websocket"


@dataclass(frozen=True)
class ClientClaim:
    """The claims of a client. `key` signs the proof; None omits the proof."""

    server_id: int | None = None
    role: str = "server"
    key: Ed25519PrivateKey | None = None
    peer_id: int | None = None
    cluster_id: str | None = None


class Connection:
    """One connection: requests 1 and 2 of the handshake. `data` follows request 2 in the same write."""

    def __init__(self, target: RaftPort, claim: ClientClaim, data: bytes = b"", *, channel: str | None = None) -> None:
        """Open the connection. `channel` replaces the channel binding in the proof, to bind another certificate."""
        nonce = self._challenge(target)
        self._socket, certificate = _tls(target)
        client_nonce = os.urandom(8).hex()
        lines = [
            f"GET {target.path} HTTP/1.1",
            f"Host: {target.host}:{target.port}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            f"Sec-WebSocket-Protocol: {OFFERED}",
            f"Authorization: {_digest(target, nonce, client_nonce)}",
        ]
        for name, value in (("Cluster", claim.cluster_id), ("Server", claim.server_id), ("Peer", claim.peer_id)):
            if value is not None:
                lines.append(f"X-Garlic-{name}: {value}")
        if claim.key is not None:
            bound = channel or f"tls {hashlib.sha256(certificate).hexdigest()}"
            lines.append(f"X-Garlic-Proof: {_proof(claim, claim.key, nonce, client_nonce, bound)}")
        try:
            self._socket.sendall("\r\n".join([*lines, "", ""]).encode() + data)
            self.head, self.rest = _reply(self._socket)
        except BaseException:
            self._socket.close()
            raise
        self.status = int(self.head.split(b" ")[1])

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def set_timeout(self, seconds: float) -> None:
        """Set the timeout of replies; a later wait raises TimeoutError."""
        self._socket.settimeout(seconds)

    def receive(self, size: int) -> bytes:
        """Return at least `size` bytes, or fewer if the server closes."""
        found = self.rest
        while len(found) < size:
            try:
                more = self._socket.recv(4096)
            except (ConnectionError, ssl.SSLError):
                break
            if not more:
                break
            found += more
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    @staticmethod
    def _challenge(target: RaftPort) -> str:
        connection, _ = _tls(target)
        with connection:
            connection.sendall(f"GET {target.path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
            head, _ = _reply(connection)
        assert head.startswith(b"HTTP/1.1 401 "), head
        found = re.search(r'algorithm=SHA-256, nonce="([0-9a-f]+)"', head.decode())
        assert found is not None
        return found[1]


def message(kind: int, source: int, destination: int, term: int, entries: bytes = b"", commit: int = 0) -> bytes:
    """Return a request: its type, source, destination, term and log entries."""
    return struct.pack(">BiiQQQQI", kind, source, destination, term, 0, 0, commit, len(entries)) + entries


def application(term: int, value: bytes) -> bytes:
    return struct.pack(">QBI", term, 1, len(value)) + value


def _tls(target: RaftPort) -> tuple[ssl.SSLSocket, bytes]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    secured = context.wrap_socket(socket.create_connection((target.host, target.port), TIMEOUT_S))
    return secured, secured.getpeercert(binary_form=True) or b""


def _digest(target: RaftPort, nonce: str, client_nonce: str) -> str:
    def hashed(*parts: str) -> str:
        return hashlib.sha256(":".join(parts).encode()).hexdigest()

    password_hash = hashed(target.user, "private", target.password)
    response = hashed(password_hash, nonce, "00000001", client_nonce, "auth", hashed("GET", target.path))
    return (
        f'Digest username="{target.user}", realm="private", nonce="{nonce}", uri="{target.path}", algorithm=SHA-256, '
        f'qop=auth, nc=00000001, cnonce="{client_nonce}", response="{response}"'
    )


def _proof(claim: ClientClaim, key: Ed25519PrivateKey, nonce: str, client_nonce: str, channel: str) -> str:
    def text(value: int | str | None) -> bytes:
        return b"" if value is None else str(value).encode()

    fields = [
        b"request", text(claim.role), text(claim.server_id), text(claim.peer_id), text(claim.cluster_id),
        text(nonce), text(client_nonce), b"00000001", text(channel), text(OFFERED), b"", b"",
        hashlib.sha256(b"").digest(),
    ]  # fmt: skip
    signed = b"garlic farm handshake 1\x00" + b"".join(len(field).to_bytes(2) + field for field in fields)
    public_key, signature = key.public_key().public_bytes_raw(), key.sign(signed)
    return f"1 {claim.role} {_base64url(public_key)} {_base64url(signature)}"


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _reply(connection: ssl.SSLSocket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(4096)
        assert more, f"the server closed after {data!r}"
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest
