"""The protocol with an HTTP proxy (RFC 2616), without I/O: the target of requests, and the login at the proxy.

    absolute-uri   GET http://name.b32.i2p:7669/GarlicFarm/… to the proxy, which forwards it with the path alone
    connect        CONNECT name.b32.i2p:7669, and then the handshake as without a proxy

A proxy that requires a password replies with 407. We begin without a password, since Basic reveals the password to any
proxy. We answer the challenge with Digest if the proxy offers it, else with Basic. A proxy's challenge is stored, so
the first request of a later connection contains the answer. This login is separate from the farm's handshake, whose
password the proxy does not see. In that handshake, Digest's `uri` is the path in both modes. So our answer to the farm
stays valid when a proxy rewrites the request line.
"""

import base64
from collections.abc import Callable
from enum import Enum

from msgspec import Struct

from consensus.protocols.garlic_farm.wire.digest import NONCE_COUNT_MAX, Challenge, Credentials, best_challenge
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError, malformed
from consensus.protocols.garlic_farm.wire.http_head import HttpHead
from consensus.protocols.garlic_farm.wire.upgrade import Headers

PROXY_AUTHENTICATION_REQUIRED = 407
_SUCCESS = range(200, 300)
_EXPLAINED = {
    400: "it does not understand the request",
    403: "it forbids this destination or port: allow it there (tinyproxy: ConnectPort)",
    404: "it cannot resolve the name",
    405: "it does not support this mode: try the other [proxy] mode",
    500: "it does not reach the destination",
    502: "it does not reach the destination",
    503: "the destination cannot be reached at the moment, or its tunnels are not built yet",
    504: "the destination did not reply in time",
}


class ProxyMode(Enum):
    """Form of requests to a proxy."""

    ABSOLUTE_URI = "absolute-uri"
    CONNECT = "connect"


class ProxyAuthentication:
    """Our login at one proxy, and its last challenge; outlives connections."""

    def __init__(self, credentials: Credentials | None, random_bytes: Callable[[int], bytes]) -> None:
        self._credentials = credentials
        self._random_bytes = random_bytes
        self._challenge: Challenge | None = None
        self._basic = False
        self._nonce_count = 0

    def headers(self, method: str, uri: str) -> list[tuple[str, str]]:
        """Return the headers that log in at the proxy with this request; none before the proxy's first challenge."""
        value = self._answer(method, uri)
        return [] if value is None else [("Proxy-Authorization", value)]

    def challenged(self, headers: Headers, *, has_answer: bool) -> None:
        """Store the challenge of a 407; raise if we do not support its methods or do not have a password.

        If the request contained our login (`has_answer`), also raise, unless the nonce was stale.
        """
        values = headers.every("proxy-authenticate")
        if self._credentials is None:
            raise _refused("the proxy requires a password: set [proxy] user and password_file")
        best = best_challenge(values)
        if has_answer and (best is None or not best.stale):
            self._challenge, self._basic = None, False
            user = self._credentials.user
            raise _refused(f"the proxy does not accept user {user!r}: check [proxy] user and password_file")
        if best is not None:
            self._challenge, self._basic, self._nonce_count = best, False, 0
        elif any(value.strip().lower().startswith("basic") for value in values):
            self._challenge, self._basic = None, True
        else:
            raise _refused("the proxy requires an authentication other than Basic or Digest")

    def _answer(self, method: str, uri: str) -> str | None:
        credentials, challenge = self._credentials, self._challenge
        if credentials is None:
            return None
        if self._basic:
            pair = f"{credentials.user}:{credentials.password}".encode()
            return f"Basic {base64.b64encode(pair).decode()}"
        if challenge is None or self._nonce_count >= NONCE_COUNT_MAX:
            return None
        self._nonce_count += 1
        client_nonce = self._random_bytes(16).hex()
        return challenge.authorization(credentials, (method, uri), self._nonce_count, client_nonce).header()


class Via(Struct, frozen=True):
    """Data for one request through a proxy in the mode `absolute-uri`."""

    authority: str
    authentication: ProxyAuthentication

    def target(self, path: str) -> str:
        """Return the target for the request line."""
        return f"http://{self.authority}{path}"


class TunnelOpen(Struct, frozen=True):
    """The connection now leads to the destination."""


class RetryConnect(Struct, frozen=True):
    """Close the connection, connect to the proxy again, and repeat the request with our login."""


class ConnectClient:
    """One CONNECT: `request` returns the bytes to send, and `receive` reads the proxy's response."""

    def __init__(self, authority: str, authentication: ProxyAuthentication) -> None:
        self._authority = authority
        self._authentication = authentication
        self._http = HttpHead("the proxy")
        self._has_answer = False

    def request(self) -> bytes:
        """Return the bytes to send."""
        authorization = self._authentication.headers("CONNECT", self._authority)
        self._has_answer = bool(authorization)
        return self._http.request("CONNECT", self._authority, [("Host", self._authority), *authorization])

    def receive(self, data: bytes) -> TunnelOpen | RetryConnect | None:
        """Process received bytes; return None until the head of the response is complete."""
        head = self._http.receive(data)
        if head is None:
            return None
        status, headers, trailing = head
        if status in _SUCCESS:
            if trailing:
                raise malformed("the proxy sent bytes of the tunnel before the first request")
            return TunnelOpen()
        if status == PROXY_AUTHENTICATION_REQUIRED:
            self._authentication.challenged(headers, has_answer=self._has_answer)
            return RetryConnect()
        raise unreachable_through_proxy(status, self._authority)


def unreachable_through_proxy(status: int, authority: str) -> GarlicFarmError:
    """Return a proxy's refusal as an error for an operator."""
    explained = _EXPLAINED.get(status, "see the proxy's own log")
    return GarlicFarmError(
        Fault.UNREACHABLE, f"the proxy replied to the request for {authority} with HTTP status {status}: {explained}"
    )


def _refused(text: str) -> GarlicFarmError:
    return GarlicFarmError(Fault.PROXY_REFUSED, text)
