"""An HTTP connection to a node's control endpoint, without code of the farm.

    /run/…/control.sock           a Unix socket: users with the right to open it may read
    /run/…                        the state directory with the socket
    https://192.168.7.5:7650      TCP: the node must show a pinned certificate before it receives the token

A control endpoint's certificate is not signed by an authority, so a check of names and authorities is useless. Instead
the certificate itself is compared, by its SHA-256, before a byte of the token leaves this process.
"""

import hashlib
import http.client
import json
import os
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

CONTROL_SOCKET = "control.sock"
TIMEOUT_SECONDS = 10.0
"""The limit of a pause between two bytes."""
ANSWER_SECONDS = 60.0
"""The limit of a whole reply, including replies with short pauses."""
RESPONSE_LIMIT_BYTES = 64 * 1024 * 1024
READ_AT_ONCE_BYTES = 1024 * 1024
CREDENTIAL_LIMIT_BYTES = 1024 * 1024
TCP_SCHEME = "https"
_PEM_BEGIN, _PEM_END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


class RefusedError(PermissionError):
    """A node refused this program, or did not prove its identity: this program or the node needs other credentials."""


class CredentialError(Exception):
    """A token or certificate file cannot be used; the text has the file and the reason."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The access to TCP endpoints: a token, and the accepted fingerprints. Picklable."""

    token: str = field(default="", repr=False)
    fingerprints: frozenset[bytes] = frozenset()


def load_credentials(token_file: Path | None, certificate_file: Path | None) -> Credentials:
    """Read both files; the second holds one or more certificates in PEM. Raise CredentialError."""
    token = "" if token_file is None else _read(token_file).strip()
    prints = [] if certificate_file is None else _fingerprints(certificate_file)
    if token_file is not None and not (token and token.isascii() and token.isprintable()):
        raise CredentialError(f"{token_file} does not contain a token: copy the node's file control.read.token")
    if certificate_file is not None and not prints:
        raise CredentialError(
            f"{certificate_file} does not contain a certificate in PEM: copy the node's file control.crt"
        )
    return Credentials(token, frozenset(prints))


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(CREDENTIAL_LIMIT_BYTES).decode("ascii", "replace")
    except OSError as error:
        raise CredentialError(f"{path} cannot be read: {error.strerror or error}") from error


def _fingerprints(path: Path) -> list[bytes]:
    found = []
    for part in _read(path).split(_PEM_BEGIN)[1:]:
        body, end, _ = part.partition(_PEM_END)
        if end:
            try:
                found.append(hashlib.sha256(ssl.PEM_cert_to_DER_cert(_PEM_BEGIN + body + _PEM_END)).digest())
            except ValueError as error:
                raise CredentialError(f"{path} contains a damaged certificate ({error}): copy it again") from error
    return found


def socket_of(path: Path) -> Path:
    """Return the control socket at `path`, or in the state directory at `path`."""
    return path / CONTROL_SOCKET if path.is_dir() else path


def check_answering_user(connected: socket.socket, path: str, own_user_id: int | None = None) -> None:
    """Raise RefusedError unless this user or root runs the process on the other side of a Unix socket."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return  # Without this option, only the socket's directory and mode protect it.
    _, user_id, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))
    if user_id not in {os.geteuid() if own_user_id is None else own_user_id, 0}:
        raise RefusedError(
            f"the process that answers at {path} is run by user id {user_id}, neither this user nor root: it may not be"
            " your node"
        )


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket; the host name is only for the Host header."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(str(socket_of(Path(self._path))))
        except BlockingIOError as error:  # its backlog is full
            raise ConnectionError(f"the node at {self._path} does not answer; is it stopped or overloaded?") from error
        check_answering_user(self.sock, self._path)


class _PinnedConnection(http.client.HTTPConnection):
    """HTTP over TLS to a node that shows one of the pinned certificates."""

    def __init__(self, host: str, port: int, fingerprints: frozenset[bytes], timeout_s: float) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._fingerprints = fingerprints

    def connect(self) -> None:
        super().connect()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # replaced by the comparison below
        secured = context.wrap_socket(self.sock)
        self.sock = secured
        shown = hashlib.sha256(secured.getpeercert(binary_form=True) or b"").digest()
        if shown not in self._fingerprints:
            self.close()
            raise RefusedError(
                f"shows an unpinned certificate ({shown.hex()[:16]}…): if it is your node, add its control.crt to the"
                " certificate file",
            )


class Endpoint:
    """A connection to one node; a context manager. It raises OSError, HTTPException, ValueError or TypeError."""

    def __init__(self, address: str, credentials: Credentials, timeout_s: float | None = None) -> None:
        self.address = address
        timeout_s = TIMEOUT_SECONDS if timeout_s is None else timeout_s
        self._headers: dict[str, str] = {}
        self._connection: http.client.HTTPConnection
        if not address.startswith(f"{TCP_SCHEME}://"):
            self._connection = _UnixConnection(address, timeout_s)
            return
        url = urlsplit(address)
        if url.hostname is None or url.port is None:
            raise ValueError("an address of TCP is https://HOST:PORT")
        if not credentials.fingerprints or not credentials.token:
            raise RefusedError("TCP needs a token file and a certificate file: name them for this farm")
        self._connection = _PinnedConnection(url.hostname, url.port, credentials.fingerprints, timeout_s)
        self._headers["Authorization"] = f"Bearer {credentials.token}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def get(self, target: str) -> dict[str, Any]:
        """Return the JSON object at `target`."""
        status, answer = self._exchange("GET", target, None)
        if status in {http.client.UNAUTHORIZED, http.client.FORBIDDEN}:
            raise RefusedError(_failure(status, answer.get("error", answer)))
        if status != http.client.OK:
            raise ValueError(_failure(status, answer.get("error", answer)))
        return answer

    def post(self, target: str, body: Mapping[str, object] | bytes) -> dict[str, Any]:
        """Return the JSON object in reply to `body`, also a refusal with a reason. Raise ValueError for an `error`."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, answer = self._exchange("POST", target, content)
        if "error" in answer:
            raise ValueError(_failure(status, answer["error"]))
        return answer

    def _exchange(self, method: str, target: str, content: bytes | None) -> tuple[int, dict[str, Any]]:
        self._connection.request(method, target, body=content, headers=self._headers)
        response = self._connection.getresponse()
        body = _whole(response)
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"status {response.status}: {body[:200].decode('utf-8', 'replace')}") from error
        if not isinstance(answer, dict):
            raise TypeError("the answer is not a JSON object")
        return response.status, answer


def _failure(status: int, error: object) -> str:
    """Return a node's reply with an error as text, without its form in JSON."""
    text = error.get("text", error) if isinstance(error, dict) else error
    return f"status {status}: {str(text)[:200]}"


def _whole(response: http.client.HTTPResponse) -> bytes:
    """Return the body of a reply, within limits of size and time."""
    ends_at, pieces, size_bytes = time.monotonic() + ANSWER_SECONDS, list[bytes](), 0
    while piece := response.read1(READ_AT_ONCE_BYTES):
        pieces.append(piece)
        size_bytes += len(piece)
        if size_bytes > RESPONSE_LIMIT_BYTES:
            raise ValueError(f"the answer is larger than {RESPONSE_LIMIT_BYTES} bytes")
        if time.monotonic() > ends_at:
            raise TimeoutError(f"the answer was not complete after {ANSWER_SECONDS:.0f} s")
    response.close()  # the whole body was read: the connection is free for the next request
    return b"".join(pieces)


LOST = (OSError, http.client.HTTPException, ValueError, TypeError)
"""The errors of a failed connection."""
