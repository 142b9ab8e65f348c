"""A simulated HTTP proxy of an I2P router on loopback: names that end in `.i2p` lead to ports of this machine.

It changes requests as the real proxy does, so a request that survives it also survives the real one. The absolute URI
becomes a path, and Host becomes the plain name. User-Agent is replaced; Accept-Encoding, Referer and headers for
proxies are removed. A Connection header without Upgrade becomes `close`. Headers are reordered, and X-I2P-Dest… headers
are added. CONNECT transfers bytes unchanged. Unregistered names get 503.

It uses threads and plain sockets, so it serves tests of any kind, and shares no code with the tested modules.
"""

import base64
import hashlib
import re
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

LOOPBACK = "127.0.0.1"
HEAD_LIMIT = 32_768
TIMEOUT_S = 60.0
NONCE = "b04a1f2c"
_REMOVED = frozenset(
    {"user-agent", "accept-encoding", "referer", "via", "from", "host", "connection", "keep-alive", "x-forwarded-for"}
)


class I2pProxy:
    """A context manager. `names` maps hosts to ports on loopback; `scheme` "basic" or "digest" requires a login."""

    def __init__(
        self, names: Mapping[str, int], *, scheme: str | None = None, login: tuple[str, str] = ("user", "secret")
    ) -> None:
        self.names = dict(names)
        self.down: set[str] = set()
        """Names that are currently unreachable."""
        self.requests: list[str] = []
        """The request lines of all forwarded requests."""
        self.passed_heads: list[bytes] = []
        self.refused_logins = 0
        self._scheme = scheme
        self._login = login
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Break all open connections."""
        with self._lock:
            connections, self._open = self._open, set()
        for each in connections:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._keep(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _keep(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError):
            client.settimeout(TIMEOUT_S)
            head, rest = _read_head(client)
            if head:
                self._pass_on(client, head, rest)
        self._drop(client)

    def _drop(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()

    def _pass_on(self, client: socket.socket, head: bytes, rest: bytes) -> None:
        line, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = line.split(" ")
        headers = [(name, value.strip()) for name, _, value in (each.partition(":") for each in lines)]
        if not self._admits(method, target, {name.lower(): value for name, value in headers}):
            self.refused_logins += 1
            challenge = 'Basic realm="proxy"' if self._scheme == "basic" else f'Digest realm="proxy", nonce="{NONCE}"'
            challenge += "" if self._scheme == "basic" else ', algorithm=MD5, qop="auth"'
            _answer(client, f"407 Proxy Authentication Required\r\nProxy-Authenticate: {challenge}")
            return
        host, path = _destination(method, target)
        port = self.names.get(host)
        if port is None or host in self.down:
            _answer(client, "503 Service Unavailable")
            return
        try:
            server = socket.create_connection((LOOPBACK, port), TIMEOUT_S)
        except OSError:
            _answer(client, "504 Gateway Timeout")
            return
        self.requests.append(line)
        self._keep(server)
        server.settimeout(None)
        client.settimeout(None)
        if method == "CONNECT":
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            rewritten = _rewritten(method, path, host, headers)
            self.passed_heads.append(rewritten)
            server.sendall(rewritten)
        if rest:
            server.sendall(rest)
        back = threading.Thread(target=_copy, args=(server, client), daemon=True)
        back.start()
        _copy(client, server)
        back.join(TIMEOUT_S)
        self._drop(server)

    def _admits(self, method: str, target: str, headers: Mapping[str, str]) -> bool:
        if self._scheme is None:
            return True
        given, (user, password) = headers.get("proxy-authorization", ""), self._login
        if self._scheme == "basic":
            return given == "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        fields = {name: quoted or bare for name, quoted, bare in re.findall(r'(\w+)=(?:"([^"]*)"|([^\s,]+))', given)}
        if fields.get("uri") != target or fields.get("nonce") != NONCE:
            return False
        secret, request = _md5(f"{user}:proxy:{password}"), _md5(f"{method}:{target}")
        expected = _md5(f"{secret}:{NONCE}:{fields['nc']}:{fields['cnonce']}:auth:{request}")
        return fields.get("response") == expected


def b32_name(number: int) -> str:
    """Return a name with the form of a destination's address."""
    digest = hashlib.sha256(f"destination {number}".encode()).digest()
    return base64.b32encode(digest).decode().lower().rstrip("=") + ".b32.i2p"


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data and len(data) < HEAD_LIMIT:
        received = client.recv(4096)
        if not received:
            return b"", b""
        data += received
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _destination(method: str, target: str) -> tuple[str, str]:
    if method == "CONNECT":
        return target.rpartition(":")[0], ""
    authority, _, path = target.removeprefix("http://").partition("/")
    return authority.partition(":")[0], "/" + path


def _rewritten(method: str, path: str, host: str, headers: list[tuple[str, str]]) -> bytes:
    upgrading = any(name.lower() == "connection" and "upgrade" in value.lower() for name, value in headers)
    kept = [each for each in headers if each[0].lower() not in _REMOVED and not each[0].lower().startswith("proxy-")]
    # The real proxy reorders headers too: its table of headers has another order.
    kept.sort(key=lambda each: hashlib.sha256(each[0].lower().encode()).digest())
    added = [
        ("X-I2P-DestHash", "q" * 43 + "="),
        ("X-I2P-DestB32", b32_name(999)),
        ("Host", host),
        ("User-Agent", "MYOB/6.66 (AN/ON)"),
        ("Connection", "Upgrade" if upgrading else "close"),
    ]
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in [*kept, *added])]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _answer(client: socket.socket, status: str) -> None:
    client.sendall(f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode())


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
