"""The requesting side of the handshake, without I/O.

    first connection:  request() ─▶ request 1;  receive(bytes) ─▶ Challenged: close, connect again
    next connection:   request() ─▶ request 2;  receive(bytes) ─▶ Switched: Raft's stream begins

A challenge is kept in a `Session`, which outlives the connection: later connections to the same server begin with
request 2. A `stale` reply replaces the nonce, and the next connection uses the new one. Any other refusal of request 2
raises `GarlicFarmError`, with a text for the operator.

Request 2 carries the proof of the caller's identity. The 101 carries the proof of the server's identity, and the caller
refuses a server without a valid proof of the expected identity. A caller without a directory of identities is a client
that shows the password alone and identifies the server by its certificate.
"""

import base64
from collections.abc import Callable

from msgspec import Struct, field

from consensus.protocols.garlic_farm.wire.digest import (
    NONCE_COUNT_MAX,
    Authorization,
    Challenge,
    Credentials,
    best_challenge,
)
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError, malformed
from consensus.protocols.garlic_farm.wire.http_head import HttpHead
from consensus.protocols.garlic_farm.wire.peers import Claim, PeerDirectory, ProvenPeer
from consensus.protocols.garlic_farm.wire.proof import PROOF_HEADER, ConnectionRole, Proof, ProofDirection
from consensus.protocols.garlic_farm.wire.proxy import PROXY_AUTHENTICATION_REQUIRED, Via, unreachable_through_proxy
from consensus.protocols.garlic_farm.wire.upgrade import (
    EXTENSION_SETS,
    PEER_HEADER,
    REFUSAL_HEADER,
    VERSION,
    Extension,
    HandshakeExchange,
    Headers,
    Identity,
    accept_token,
    admission_headers,
    path_of,
)

CACHE_MS = 100 * 60 * 1000
"""Period of use of a challenge: more than the hour that I2P proposal 150 requires, less than a nonce's lifetime."""

_SWITCHING, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _CONFLICT = 101, 401, 403, 404, 409
_SERVER_ERRORS = 500
_REFUSED = {
    Fault.UNPROVEN: "the server does not accept this node's proof of its identity: this node reached another"
    " certificate or I2P name than the server's, so an attacker may relay the connection",
    Fault.UNKNOWN_IDENTITY: "the server does not know this node's identity under the Raft id that it claims: it was"
    " never admitted to that farm, or that server has not applied its admission yet",
    Fault.EXPELLED: "the server reports that this node was removed from the farm, or its identity evicted or replaced",
    Fault.WRONG_SERVER: "another server than {called} listens at the address that {called} announced",
    Fault.BUSY: "the server is starting, or does not belong to its farm yet, and cannot name the servers of the farm",
}
"""Meanings of `X-Garlic-Refusal`."""


class Session(Struct):
    """State of one server, kept between connections."""

    challenge: Challenge | None = None
    learned_ms: int = 0
    nonce_count: int = 0

    def usable(self, now_ms: int) -> bool:
        """Return True if a connection can begin with request 2."""
        fresh = 0 <= now_ms - self.learned_ms < CACHE_MS
        return self.challenge is not None and fresh and self.nonce_count < NONCE_COUNT_MAX

    def learn(self, challenge: Challenge, now_ms: int) -> None:
        """Use this challenge from now on."""
        self.challenge, self.learned_ms, self.nonce_count = challenge, now_ms, 0


class Initiator(Struct, frozen=True):
    """Common data of all handshakes of one client."""

    cluster: str
    credentials: Callable[[], tuple[Credentials, ...]]
    """Present credentials, the best first: passwords change while a farm runs, and not all servers have them
    immediately.
    """
    identity: Callable[[], Identity]
    random_bytes: Callable[[int], bytes]
    peers: PeerDirectory | None
    """Signs for this caller, and knows the servers; None: a client without an identity."""
    role: ConnectionRole = ConnectionRole.CLIENT
    version: str = VERSION
    offered: tuple[str, ...] = field(default=tuple(EXTENSION_SETS))
    login: Callable[[str], Credentials | None] = lambda _: None
    """Other credentials for the server at this address (`host:port`), if it has its own users."""

    def shown_to(self, host: str) -> tuple[Credentials, ...]:
        """Return the credentials for the server at this address, the best first."""
        login = self.login(host)
        return self.credentials() if login is None else (login,)


class Challenged(Struct, frozen=True):
    """Close, connect again, and begin a new `UpgradeClient` with the same session."""


class Switched(Struct, frozen=True):
    """The stream is Raft's, beginning with `trailing`."""

    trailing: bytes
    peer: Identity
    extensions: frozenset[Extension]
    proven: ProvenPeer | None
    """The replying server; None if the caller cannot check it."""


class UpgradeClient:
    """One connection's handshake."""

    def __init__(
        self,
        caller: Initiator,
        session: Session,
        host: str,
        now_ms: int,
        credentials: Credentials | None = None,
        via: Via | None = None,
        *,
        channel: str,
        called: int | None = None,
    ) -> None:
        """Begin a handshake; `channel` is the connection's target (`proof`), `called` is the expected Raft id."""
        self._channel = channel
        self._called = called
        self._own_identity = Identity()
        self._sent_authorization: Authorization | None = None
        self._caller = caller
        self._credentials = credentials or caller.shown_to(host)[0]
        self._session = session
        self._now_ms = now_ms
        self._path = path_of(caller.cluster, caller.version)
        self._host = host
        self._via = via
        self._has_proxy_answer = False
        self._http = HttpHead("the server")
        self._authorized = session.usable(now_ms)
        self._key = base64.b64encode(caller.random_bytes(16)).decode()

    def request(self) -> bytes:
        """Return the bytes to send first: request 1, or request 2 when the session has a challenge."""
        headers = [("Host", self._host), ("Cache-Control", "no-cache")]
        if self._authorized:
            own_identity, authorization = self._caller.identity(), self._authorization()
            self._own_identity, self._sent_authorization = own_identity, authorization
            headers += [
                ("Connection", "keep-alive, Upgrade"),
                ("Upgrade", "websocket"),
                ("Sec-WebSocket-Key", self._key),
                ("Sec-WebSocket-Version", "13"),
                ("Authorization", authorization.header()),
                *own_identity.headers(),
                *self._proof(authorization, own_identity),
            ]
            if self._caller.offered:
                headers.append(("Sec-WebSocket-Protocol", ", ".join(self._caller.offered)))
        else:
            headers.append(("Connection", "close"))
        target = self._path
        if self._via is not None:
            target = self._via.target(self._path)
            for_proxy = self._via.authentication.headers("GET", target)
            self._has_proxy_answer = bool(for_proxy)
            headers += for_proxy
        return self._http.request("GET", target, headers)

    def receive(self, data: bytes) -> Challenged | Switched | None:
        """Process received bytes; return None until the head of the response is complete."""
        head = self._http.receive(data)
        if head is None:
            return None
        status, headers, trailing = head
        if status == _SWITCHING:
            return self._switched(headers, trailing)
        if status == _UNAUTHORIZED:
            return self._challenged(headers)
        if status == PROXY_AUTHENTICATION_REQUIRED and self._via is not None:
            self._via.authentication.challenged(headers, has_answer=self._has_proxy_answer)
            return Challenged()
        raise self._refusal(status, headers)

    def _proof(self, authorization: Authorization, own_identity: Identity) -> list[tuple[str, str]]:
        """Return the headers with the caller's identity and the intended server."""
        peers, role = self._caller.peers, self._caller.role
        called = [] if self._called is None else [(PEER_HEADER, str(self._called))]
        if peers is None:
            return called
        signed = self._exchange(authorization).signed_by(own_identity, self._called, ProofDirection.REQUEST, role)
        proof = Proof(role, peers.public_key, peers.sign(signed))
        admissions = [] if own_identity.server_id is None else admission_headers(peers.admissions())
        return [*called, (PROOF_HEADER, proof.header()), *admissions]

    def _exchange(self, authorization: Authorization) -> HandshakeExchange:
        return HandshakeExchange(authorization, self._channel, ", ".join(self._caller.offered))

    def _authorization(self) -> Authorization:
        challenge = self._session.challenge
        if challenge is None:  # `request` calls this only when the session is usable
            raise malformed("no challenge to answer")
        self._session.nonce_count += 1
        client_nonce = self._caller.random_bytes(16).hex()
        return challenge.authorization(self._credentials, ("GET", self._path), self._session.nonce_count, client_nonce)

    def _challenged(self, headers: Headers) -> Challenged:
        best = best_challenge(headers.every("www-authenticate"))
        if best is None:
            raise GarlicFarmError(
                Fault.REFUSED_UPGRADE, "the server requires an authentication other than Digest with qop=auth"
            )
        if self._authorized and not best.stale:
            self._session.challenge = None
            raise GarlicFarmError(
                Fault.WRONG_CREDENTIALS,
                f"the server does not accept user {self._credentials.user!r}; "
                "check that both nodes have the same farm key file, or that its users_file and our logins_file agree",
            )
        self._session.learn(best, self._now_ms)
        return Challenged()

    def _switched(self, headers: Headers, trailing: bytes) -> Switched:
        if not self._authorized or not headers.names_token("upgrade", "websocket"):
            raise GarlicFarmError(Fault.REFUSED_UPGRADE, "the server switched protocols without a request")
        accept = headers.one("sec-websocket-accept")
        if accept is not None and accept != accept_token(self._key):
            raise malformed("Sec-WebSocket-Accept does not answer our key")
        chosen = headers.one("sec-websocket-protocol")
        if chosen is not None and chosen not in self._caller.offered:
            raise malformed(f"the server chose {chosen[:64]!r}, which this node did not offer")
        own_identity, peer = self._own_identity, headers.identity()
        if None not in {own_identity.cluster_id, peer.cluster_id} and own_identity.cluster_id != peer.cluster_id:
            raise self._wrong_cluster(peer)
        extensions: frozenset[Extension] = frozenset() if chosen is None else EXTENSION_SETS.get(chosen, frozenset())
        return Switched(trailing, peer, extensions, self._proven(headers, peer, chosen or ""))

    def _proven(self, headers: Headers, peer: Identity, chosen: str) -> ProvenPeer | None:
        """Return the replying server; raises `GarlicFarmError` for an invalid claim."""
        if self._called is not None and peer.server_id != self._called:
            if peer.server_id is None:
                raise GarlicFarmError(
                    Fault.BUSY, f"a server without an id answers at the address of server {self._called}"
                )
            text = f"server {peer.server_id} answers at the address that server {self._called} announced"
            raise GarlicFarmError(Fault.WRONG_SERVER, text)
        peers, authorization = self._caller.peers, self._sent_authorization
        if peers is None or authorization is None:
            return None
        proof = headers.proof()
        if proof is None or proof.role is not ConnectionRole.SERVER:
            text = "the server knows the password but does not prove an identity: it is not a server of this farm"
            raise GarlicFarmError(Fault.UNPROVEN, text)
        role, own_id = proof.role, self._own_identity.server_id
        if not proof.holds(self._exchange(authorization).signed_by(peer, own_id, ProofDirection.ANSWER, role, chosen)):
            raise GarlicFarmError(
                Fault.UNPROVEN,
                "the server's proof of its identity does not hold for this connection: an attacker relays or"
                " changes it",
            )
        refusal = peers.judge(Claim(role, proof.public_key, self._called, headers.admissions()))
        if refusal is not None:
            raise GarlicFarmError(refusal.fault, f"the server that answers there is refused: {refusal.text}")
        return ProvenPeer(role, proof.public_key, self._called)

    def _refusal(self, status: int, headers: Headers) -> GarlicFarmError:
        if status == _NOT_FOUND:
            return GarlicFarmError(
                Fault.WRONG_PATH,
                f"the server does not know {self._path}: it serves another cluster or another version, "
                "or something else listens at this address",
            )
        if status == _CONFLICT:
            return self._wrong_cluster(headers.identity())
        refused = next((each for each in _REFUSED if each.value == headers.one(REFUSAL_HEADER.lower())), None)
        if status == _FORBIDDEN and refused is not None and self._authorized:
            called = "the called server" if self._called is None else f"server {self._called}"
            return GarlicFarmError(refused, _REFUSED[refused].format(called=called))
        if self._via is not None and (status == _FORBIDDEN or status >= _SERVER_ERRORS):
            return unreachable_through_proxy(status, self._via.authority)
        return GarlicFarmError(Fault.REFUSED_UPGRADE, f"the server answered the handshake with HTTP status {status}")

    def _wrong_cluster(self, peer: Identity) -> GarlicFarmError:
        return GarlicFarmError(
            Fault.WRONG_CLUSTER,
            f"the server belongs to cluster {peer.cluster_id}, this one to {self._caller.identity().cluster_id}; "
            "two farms under one key never merge: one of them must rejoin as new servers",
        )
