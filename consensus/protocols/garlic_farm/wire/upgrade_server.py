"""The accepting side of the handshake, without I/O: bytes in; one response, and a verdict, out.

    receive(bytes) ─▶ None (the head is incomplete) │ RefusedUpgrade (send, close) │ Upgraded (send, continue)

The responses to a peer without the password do not describe this server. The reply to every path except the cluster's
is the same 404, and the 401 does not name the program. The checks begin with HTTP syntax, method and path, password,
and freshness of the nonce. Then follow HTTP version, upgrade headers, cluster id, identity, and absence of a body. The
text of a refusal is only for the operator of this server; it is not sent.

The password only permits a connection. A peer that claims a Raft id proves it by its identity's signature, and the
directory maps identities to ids. The signature and the directory's entry are checked here, before a Raft message is
read. A peer that does not claim an id may make requests as a client.
"""

import hmac
import re
from collections.abc import Callable

import h11
from msgspec import Struct

from consensus.protocols.garlic_farm.wire.digest import Algorithm, Authorization, Challenge, parse_authorization
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.nonces import NonceBook
from consensus.protocols.garlic_farm.wire.peers import PeerDirectory, ProvenPeer, Refusal
from consensus.protocols.garlic_farm.wire.proof import PROOF_HEADER, ConnectionRole, Proof, ProofDirection
from consensus.protocols.garlic_farm.wire.upgrade import (
    EXTENSION_SETS,
    HEAD_BYTES_MAX,
    REFUSAL_HEADER,
    Extension,
    HandshakeExchange,
    Headers,
    Identity,
    accept_token,
    admission_headers,
    is_websocket_key,
    path_of,
    path_within,
)

REALM = "private"
_METHOD = "GET"
_HTTP_VERSION = b"1.1"
_WEBSOCKET_VERSION = "13"
_HANDSHAKE = re.compile(r"/GarlicFarm/([A-Za-z0-9._-]{1,64})/([A-Za-z0-9._-]{1,16})/websocket")
# MD5 comes first: clients by RFC 2617 take the first challenge and may support only MD5. This project's client chooses
# the strongest.
_OFFERED = (Algorithm.MD5, Algorithm.SHA_256)


class RefusedUpgrade(Struct, frozen=True):
    """A refusal: send `response` and close. `fault` and `text` are for the counters and the operator."""

    response: bytes
    fault: Fault | None
    text: str


class Upgraded(Struct, frozen=True):
    """An accepted handshake: send `response`. All bytes after the request are Raft's, beginning with `trailing`."""

    response: bytes
    trailing: bytes
    user: str
    peer: Identity
    extensions: frozenset[Extension]
    proven: ProvenPeer | None
    """The proven identity; None if the peer has proven only the password."""


UpgradeResult = RefusedUpgrade | Upgraded


class Authenticator:
    """Common data of all handshakes of one server: its users, its nonces, its cluster, and the identities in it."""

    def __init__(
        self,
        cluster: str,
        password_of: Callable[[str], str | None],
        nonces: NonceBook,
        identity: Callable[[], Identity],
        *,
        peers: PeerDirectory,
        introduced: Callable[[Identity], Identity] = lambda identity: identity,
    ) -> None:
        """Make an authenticator; `introduced` adds introductions to this server's identity in the response."""
        self.peers = peers
        self.path = path_of(cluster)
        self.identity = identity
        self.introduced = introduced
        self._password_of = password_of
        self._nonces = nonces

    def challenges(self, now_ms: int, *, stale: bool) -> list[tuple[str, str]]:
        """Return the WWW-Authenticate headers of a 401."""
        nonce = self._nonces.mint(now_ms)
        return [
            ("WWW-Authenticate", Challenge(REALM, nonce, algorithm, stale=stale).header()) for algorithm in _OFFERED
        ]

    def knows(self, authorization: Authorization) -> bool:
        """Return True if the credentials prove a user's password for this path; an unknown user takes the same time."""
        password = self._password_of(authorization.user)
        proven = authorization.proves(password or "", _METHOD)
        right_place = hmac.compare_digest(authorization.realm.encode(), REALM.encode()) and hmac.compare_digest(
            path_within(authorization.uri).encode(), self.path.encode()
        )
        return proven and right_place and password is not None

    def spend(self, authorization: Authorization, now_ms: int) -> bool:
        """Return True, once, if the nonce is current and its count is higher than all earlier counts."""
        return self._nonces.use(authorization.nonce, authorization.nonce_count, now_ms)

    def was_sent_before(self, authorization: Authorization, now_ms: int) -> bool:
        """Return True if refused credentials are a replay; False if the nonce expired, or another process issued it."""
        return self._nonces.is_current(authorization.nonce, now_ms)


class UpgradeServer:
    """One handshake. The client's proof must be for `channel`: this server's certificate or I2P name."""

    def __init__(self, authenticator: Authenticator, channel: str) -> None:
        self._authenticator = authenticator
        self._channel = channel
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._received_bytes = 0

    def receive(self, data: bytes, now_ms: int) -> UpgradeResult | None:
        """Process received bytes; return None until the head of the request is complete. `now_ms` must not decrease."""
        self._received_bytes += len(data)
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
            if event is h11.NEED_DATA and data:
                return None
            if not isinstance(event, h11.Request):
                return RefusedUpgrade(b"", Fault.MALFORMED, "the connection ended before a whole request")
            if self._received_bytes - len(self._http.trailing_data[0]) > HEAD_BYTES_MAX:
                return self._refuse(431, Fault.TOO_LARGE, f"a request head of more than {HEAD_BYTES_MAX} bytes")
            return self._decide(event, now_ms)
        except h11.RemoteProtocolError as error:
            return self._refuse(error.error_status_hint or 400, Fault.MALFORMED, f"not an HTTP request: {error}")
        except GarlicFarmError as error:
            return self._refuse(400, error.fault, str(error))

    def _decide(self, request: h11.Request, now_ms: int) -> UpgradeResult:
        headers = Headers(request.headers)
        target = request.target.decode("latin-1")
        if request.method != _METHOD.encode() or path_within(target) != self._authenticator.path:
            method = request.method.decode("latin-1")
            fault, text = _explained(method, path_within(target), self._authenticator.path)
            return self._refuse(404, fault, text)
        given = headers.one("authorization")
        authorization = None if given is None else parse_authorization(given)
        if authorization is None:
            explained = "no credentials yet" if given is None else "credentials are not Digest with qop=auth"
            return self._challenge(now_ms, None if given is None else Fault.WRONG_CREDENTIALS, explained)
        if not self._authenticator.knows(authorization):
            text = f"wrong user or password (user {authorization.user[:64]!r})"
            return self._challenge(now_ms, Fault.WRONG_CREDENTIALS, text)
        if not self._authenticator.spend(authorization, now_ms):
            replayed = self._authenticator.was_sent_before(authorization, now_ms)
            problem = "a repeated request" if replayed else "an expired nonce, or a nonce of another process"
            text = f"user {authorization.user[:64]!r} sent {problem}"
            return self._challenge(now_ms, Fault.REPLAYED if replayed else None, text, stale=True)
        if request.http_version != _HTTP_VERSION:
            return self._refuse(400, Fault.MALFORMED, "an upgrade request in an old version of HTTP")
        return self._switch(headers, authorization)

    def _switch(self, headers: Headers, authorization: Authorization) -> UpgradeResult:
        if not headers.names_token("connection", "upgrade") or not headers.names_token("upgrade", "websocket"):
            text = "an authenticated request without `Connection: Upgrade` and `Upgrade: websocket`"
            return self._refuse(426, Fault.REFUSED_UPGRADE, text, [("Upgrade", "websocket")])
        key, version = headers.one("sec-websocket-key"), headers.one("sec-websocket-version")
        if (key is not None and not is_websocket_key(key)) or version not in {None, _WEBSOCKET_VERSION}:
            text = "Sec-WebSocket-Key or Sec-WebSocket-Version does not conform to version 13"
            return self._refuse(400, Fault.MALFORMED, text, [("Sec-WebSocket-Version", _WEBSOCKET_VERSION)])
        own_identity, peer = self._authenticator.identity(), headers.identity()
        if None not in {own_identity.cluster_id, peer.cluster_id} and own_identity.cluster_id != peer.cluster_id:
            text = f"a member of cluster {peer.cluster_id}, while this server belongs to {own_identity.cluster_id}"
            return self._refuse(409, Fault.WRONG_CLUSTER, text, own_identity.headers())
        proven = self._proven(headers, authorization, own_identity, peer)
        if isinstance(proven, Refusal):
            text = f"{proven.text} (user {authorization.user[:64]!r})"
            return self._refuse(403, proven.fault, text, [(REFUSAL_HEADER, proven.fault.value)])
        if not isinstance(self._http.next_event(), h11.EndOfMessage) or self._http.next_event() is not h11.PAUSED:
            return self._refuse(400, Fault.MALFORMED, "an upgrade request with a body")
        return self._accept(headers, authorization, (self._authenticator.introduced(own_identity), peer), proven)

    def _proven(
        self, headers: Headers, authorization: Authorization, own_identity: Identity, peer: Identity
    ) -> ProvenPeer | Refusal | None:
        """Return the proven peer, or its refusal; None for a peer that neither proves nor claims an identity."""
        proof, called = headers.proof(), headers.called()
        own_id, claimed_id = own_identity.server_id, peer.server_id
        sender = "a peer without an id" if claimed_id is None else f"a peer that claims to be server {claimed_id}"
        if proof is None:
            if claimed_id is None:
                return None
            return Refusal(
                Fault.UNPROVEN,
                f"{sender} did not prove its identity: it proved only the farm's password",
            )
        signed = self._exchange(headers, authorization).signed_by(peer, called, ProofDirection.REQUEST, proof.role)
        if not proof.holds(signed):
            return Refusal(
                Fault.UNPROVEN,
                f"{sender} sent a proof that is not valid for this connection: the proof was made for another server,"
                " or an attacker has changed or relayed it",
            )
        if called is not None and called != own_id:
            if own_id is None:
                text = f"{sender} called server {called}, but this server is starting, or does not have an id yet"
                return Refusal(Fault.BUSY, text)
            return Refusal(Fault.WRONG_SERVER, f"{sender} called server {called}, but this is server {own_id}")
        proven = ProvenPeer(proof.role, proof.public_key, claimed_id, headers.admissions())
        return self._authenticator.peers.judge(proven) or proven

    def _exchange(self, headers: Headers, authorization: Authorization) -> HandshakeExchange:
        return HandshakeExchange(authorization, self._channel, headers.offered())

    def _accept(
        self,
        headers: Headers,
        authorization: Authorization,
        sides: tuple[Identity, Identity],
        proven: ProvenPeer | None,
    ) -> UpgradeResult:
        own_identity, peer = sides
        response = [("Connection", "Upgrade"), ("Upgrade", "websocket"), *own_identity.headers()]
        key = headers.one("sec-websocket-key")
        if key is not None:
            response.append(("Sec-WebSocket-Accept", accept_token(key)))
        spoken, peers = EXTENSION_SETS, self._authenticator.peers
        chosen = next((name for name in headers.tokens("sec-websocket-protocol") if name in spoken), None)
        if chosen is not None:
            response.append(("Sec-WebSocket-Protocol", chosen))
        role, exchange = ConnectionRole.SERVER, self._exchange(headers, authorization)
        signed = exchange.signed_by(own_identity, peer.server_id, ProofDirection.ANSWER, role, chosen or "")
        proof = Proof(role, peers.public_key, peers.sign(signed))
        response += [(PROOF_HEADER, proof.header()), *admission_headers(peers.admissions())]
        data = self._http.send(
            h11.InformationalResponse(status_code=101, headers=response, reason=b"Switching Protocols")
        )
        extensions = spoken[chosen] if chosen is not None else frozenset()
        trailing = self._http.trailing_data[0]
        return Upgraded(data or b"", trailing, authorization.user, peer, extensions, proven)

    def _challenge(self, now_ms: int, fault: Fault | None, text: str, *, stale: bool = False) -> RefusedUpgrade:
        return self._refuse(401, fault, text, self._authenticator.challenges(now_ms, stale=stale))

    def _refuse(
        self, status: int, fault: Fault | None, text: str, headers: list[tuple[str, str]] | None = None
    ) -> RefusedUpgrade:
        return RefusedUpgrade(_plain_response(status, headers or []), fault, text)


def _explained(method: str, requested: str, own: str) -> tuple[Fault, str]:
    """Return the fault and the reason for a request that is not our handshake. The peer receives only a 404."""
    if requested == own:
        return Fault.WRONG_METHOD, f"requested with the method {method[:32]!r}, but a handshake begins with {_METHOD}"
    found, expected = _HANDSHAKE.fullmatch(requested), _HANDSHAKE.fullmatch(own)
    if found is None or expected is None:
        return Fault.WRONG_PATH, f"requested {requested[:100]!r}, which is not a path of a handshake"
    if found[1] != expected[1]:
        return Fault.WRONG_CLUSTER, f"requested the cluster {found[1]!r}, but this server serves {expected[1]!r}"
    return (
        Fault.WRONG_VERSION,
        f"requested version {found[2]!r} of the protocol, but this server has version {expected[2]!r}",
    )


_REASONS = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    409: "Conflict",
    426: "Upgrade Required",
    431: "Request Header Fields Too Large",
}


def _plain_response(status: int, headers: list[tuple[str, str]]) -> bytes:
    # Written without h11, which does not send a response to a request that it could not parse completely.
    reason = _REASONS.get(status, "Bad Request")
    body = f"{reason}\n"
    lines = [
        f"HTTP/1.1 {status} {reason}",
        *(
            f"{name}: {value}"
            for name, value in [
                ("Content-Type", "text/plain"),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
                *headers,
            ]
        ),
    ]
    return "\r\n".join([*lines, "", body]).encode("latin-1")
