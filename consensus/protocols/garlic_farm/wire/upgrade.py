"""The common part of both sides of the handshake: the path, the headers, the extensions, the limits.

    client ──▶ request 1: GET /GarlicFarm/CLUSTER/VERSION/websocket, Connection: close
    server ──▶ 404, or 401 with a Digest challenge; both close
    client ──▶ request 2: the same with Authorization and Upgrade: websocket
    server ──▶ 101, and the same connection carries Raft's messages; or 401 again; or 403: the identity is refused

After the 101 the stream carries Raft's messages without WebSocket frames. The client sends this project's headers in
request 2, and the server sends them only to clients with the password. `X-Garlic-Cluster` is the cluster id; the reply
to a mismatch is 409. `X-Garlic-Server` is the sender's Raft id. `X-Garlic-Proof` is a signature by the sender's
identity (`proof`). `X-Garlic-Lease` is the promised time of refusing candidates, in milliseconds. `X-Garlic-Peer` in
the request is the Raft id of the intended server. The reply to an id without a proof is 403, with the kind of the
refusal in `X-Garlic-Refusal`. `X-Garlic-Admission` carries admissions, which prove the sender's identity to a server
whose log lacks it. `X-Garlic-Introduction` carries introductions of the layer above, if servers lack another way to
discover each other. Both begin with the sender's own, and are opaque here.

`Sec-WebSocket-Protocol` negotiates extensions: the client offers names in order of preference, and the server selects
one (RFC 6455 allows no more). A name represents a set of extensions. A server of another implementation selects none
and gets only the seventeen messages of I2P proposal 150.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from enum import Enum

from msgspec import Struct

from consensus.protocols.garlic_farm.wire.digest import Authorization
from consensus.protocols.garlic_farm.wire.errors import malformed
from consensus.protocols.garlic_farm.wire.limits import ID_MAX
from consensus.protocols.garlic_farm.wire.proof import (
    PROOF_HEADER,
    ConnectionRole,
    Proof,
    ProofDirection,
    parse_proof,
    signed_bytes,
)

VERSION = "1"
HEAD_BYTES_MAX = 32_768
"""Room for the largest introductions and admissions, and 4 KiB for the rest."""
CLUSTER_HEADER = "X-Garlic-Cluster"
SERVER_HEADER = "X-Garlic-Server"
PEER_HEADER = "X-Garlic-Peer"
LEASE_HEADER = "X-Garlic-Lease"
REFUSAL_HEADER = "X-Garlic-Refusal"
ADMISSION_HEADER = "X-Garlic-Admission"
ADMISSION_CHARACTERS_MAX = 1_024
ADMISSIONS_MAX = 16
"""Longest chain of admissions: each leader in it was admitted by the next.

Long chains are rare, and need a large head.
"""
INTRODUCTION_HEADER = "X-Garlic-Introduction"
INTRODUCTION_CHARACTERS_MAX = 1_024
INTRODUCTIONS_MAX = 12
"""Limit of the introductions in one head, which must have room for all other headers."""
_WEBSOCKET_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_WEBSOCKET_KEY_BYTES = 16
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CLUSTER_ID = re.compile(r"[\x21-\x7e]{1,128}")
_ADMISSION = re.compile(rf"[A-Za-z0-9_-]{{1,{ADMISSION_CHARACTERS_MAX}}}")
_INTRODUCTION = re.compile(rf"[A-Za-z0-9_-]{{1,{INTRODUCTION_CHARACTERS_MAX}}}")
_LEASE = re.compile(r"[1-9][0-9]{0,8}")
_SERVER_ID = re.compile(r"[1-9][0-9]{0,9}")


class Extension(Enum):
    """Extensions of this project, beyond the document."""

    PRE_VOTE = "pre-vote"
    TRANSFER = "transfer"
    CONFIGURATIONS = "configurations"
    READ_INDEX = "read-index"
    SESSIONS = "sessions"
    """The reply to a client can report that its session has expired; see `docs/explanation/clients.md`."""


EXTENSION_SETS: dict[str, frozenset[Extension]] = {
    "garlicfarm.raft.v1": frozenset(Extension),
    "garlicfarm.prevote.v1": frozenset({Extension.PRE_VOTE}),
}
"""The names in `Sec-WebSocket-Protocol`, best first."""


class Identity(Struct, frozen=True):
    """A server's present claims. It lacks both ids until the cluster exists and has assigned a server id."""

    cluster_id: str | None = None
    server_id: int | None = None
    lease_ms: int | None = None
    """Promised time of refusing candidates after contact with the leader and after a restart."""
    introductions: tuple[str, ...] = ()
    """Introductions in base64url; the first is the sender's own."""

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers for the other side."""
        headers = []
        if self.cluster_id is not None:
            headers.append((CLUSTER_HEADER, self.cluster_id))
        if self.server_id is not None:
            headers.append((SERVER_HEADER, str(self.server_id)))
        if self.lease_ms is not None:
            headers.append((LEASE_HEADER, str(self.lease_ms)))
        headers += [(INTRODUCTION_HEADER, each) for each in self.introductions]
        return headers


class HandshakeExchange(Struct, frozen=True):
    """The fields that both proofs of one handshake cover, without the signer's own."""

    authorization: Authorization
    channel: str
    """`tls ` and the SHA-256 of the server's certificate in hexadecimal, or `i2p ` and the dialed name."""
    offered: str

    def signed_by(
        self, signer: Identity, other_id: int | None, direction: ProofDirection, role: ConnectionRole, chosen: str = ""
    ) -> bytes:
        """Return the bytes that `signer` signs; `other_id` is the Raft id of the other side."""
        login = self.authorization
        ids = (signer.server_id, other_id, signer.cluster_id)
        nonces = (login.nonce, login.client_nonce, f"{login.nonce_count:08x}")
        fields = (direction.value, role.value, *ids, *nonces, self.channel, self.offered, chosen, signer.lease_ms)
        return signed_bytes(fields, signer.introductions)


def admission_headers(admissions: Iterable[bytes]) -> list[tuple[str, str]]:
    """Return headers that prove this server to servers without its entry; a chain beyond `ADMISSIONS_MAX` is cut."""
    words = [base64.urlsafe_b64encode(each).decode().rstrip("=") for each in admissions]
    fitting = [word for word in words[:ADMISSIONS_MAX] if len(word) <= ADMISSION_CHARACTERS_MAX]
    return [(ADMISSION_HEADER, word) for word in fitting]


def path_of(cluster: str, version: str = VERSION) -> str:
    """Return the path of a cluster's handshake."""
    if not _NAME.fullmatch(cluster):
        raise malformed(f"the cluster name {cluster!r} is not 1 to 64 letters, digits, dots, dashes or underscores")
    return f"/GarlicFarm/{cluster}/{version}/websocket"


def path_within(target: str) -> str:
    """Return the path of a request target, which may be an absolute URI from a proxy."""
    for scheme in ("http://", "https://"):
        if target.lower().startswith(scheme):
            _, slash, path = target[len(scheme) :].partition("/")
            return slash + path
    return target


def accept_token(key: str) -> str:
    """Return Sec-WebSocket-Accept for a Sec-WebSocket-Key."""
    digest = hashlib.sha1((key + _WEBSOCKET_GUID).encode(), usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


def is_websocket_key(key: str) -> bool:
    """Return True if a Sec-WebSocket-Key is 16 bytes in base64."""
    try:
        return len(base64.b64decode(key, validate=True)) == _WEBSOCKET_KEY_BYTES
    except (binascii.Error, ValueError):
        return False


class Headers:
    """A message's headers, by lower-case name."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in raw:
            self._values.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

    def one(self, name: str) -> str | None:
        """Return the header's only value, or None.

        Two values are an error, because two readers could choose different ones.
        """
        values = self._values.get(name, [])
        if len(values) > 1:
            raise malformed(f"the header {name} appears {len(values)} times")
        return values[0] if values else None

    def every(self, name: str) -> list[str]:
        """Return the header's values, one for each occurrence."""
        return self._values.get(name, [])

    def tokens(self, name: str) -> list[str]:
        """Return the comma-separated members of all occurrences of a header."""
        return [token for value in self.every(name) for part in value.split(",") if (token := part.strip())]

    def names_token(self, name: str, token: str) -> bool:
        """Return True if `token` is among the members, in any case of letters."""
        return token in (found.lower() for found in self.tokens(name))

    def identity(self) -> Identity:
        """Return the other side's cluster id and Raft id, if given."""
        cluster_id = self.one(CLUSTER_HEADER.lower())
        if cluster_id is not None and not _CLUSTER_ID.fullmatch(cluster_id):
            raise malformed(f"{CLUSTER_HEADER} is not 1 to 128 visible characters")
        lease = self.one(LEASE_HEADER.lower())
        if lease is not None and not _LEASE.fullmatch(lease):
            raise malformed(f"{LEASE_HEADER} is not a number of milliseconds of at most nine digits")
        return Identity(
            cluster_id, self._id(SERVER_HEADER), None if lease is None else int(lease), self._introductions()
        )

    def called(self) -> int | None:
        """Return the Raft id of the intended server of a request."""
        return self._id(PEER_HEADER)

    def proof(self) -> Proof | None:
        """Return the proof of the other side's identity."""
        given = self.one(PROOF_HEADER.lower())
        return None if given is None else parse_proof(given)

    def admissions(self) -> tuple[bytes, ...]:
        """Return the other side's admissions, in the order of `Claim.admissions`."""
        found = self.tokens(ADMISSION_HEADER.lower())
        if len(found) > ADMISSIONS_MAX or not all(_ADMISSION.fullmatch(each) for each in found):
            raise malformed(f"{ADMISSION_HEADER} is not at most {ADMISSIONS_MAX} words in base64url")
        try:
            return tuple(base64.urlsafe_b64decode(each + "=" * (-len(each) % 4)) for each in found)
        except (binascii.Error, ValueError) as error:
            raise malformed(f"{ADMISSION_HEADER} is not base64url") from error

    def offered(self) -> str:
        """Return the offered extensions in one line."""
        return ", ".join(self.every("sec-websocket-protocol"))

    def _id(self, name: str) -> int | None:
        value = self.one(name.lower())
        if value is not None and (not _SERVER_ID.fullmatch(value) or int(value) > ID_MAX):
            raise malformed(f"{name} is not a positive 32-bit id")
        return None if value is None else int(value)

    def _introductions(self) -> tuple[str, ...]:
        found = tuple(self.tokens(INTRODUCTION_HEADER.lower()))
        if len(found) > INTRODUCTIONS_MAX or not all(_INTRODUCTION.fullmatch(each) for each in found):
            raise malformed(f"{INTRODUCTION_HEADER} is not at most {INTRODUCTIONS_MAX} words in base64url")
        return found
