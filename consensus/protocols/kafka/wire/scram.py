"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): a client proves a password that the server does not store.

    client                                          server
    n,,n=user,r=<nonce>                  ──▶
                                         ◀──        r=<nonce><nonce>,s=<salt>,i=<iterations>
    c=biws,r=<both>,p=<proof>            ──▶        proof XOR signature hashes to the stored key?
    checks the server's signature        ◀──        v=<signature>

The server stores salt, iterations, H(ClientKey) and ServerKey. docs/explanation/other-protocols.md explains the
protection of stored data and of the existing users (`UnknownUsers`), and the encoding of names.

*The nonce* of the client's last message must equal the server's (RFC 5802, section 5.1). librdkafka before 2.6.1
prepends its own nonce a second time. Such a client gets a separate error text, after the same computations: an error
about the password would mislead operators. The nonce is not a secret, so the text reveals nothing about users.
"""

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, Protocol

from msgspec import Struct

from consensus.protocols.kafka.wire.limits import KafkaWireError

MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 1_000_000
"""Limit of the iterations that a client computes for an unknown server."""
_MAX_MESSAGE_BYTES: Final = 4096
_SALT_BYTES: Final = 16
_NONCE_BYTES: Final = 24
_GS2_HEADERS: Final = ("n", "y")


class Mechanism(Enum):
    """A mechanism by its name in SASL."""

    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"

    @property
    def digest(self) -> str:
        """The name of the hash function in `hashlib`."""
        return "sha256" if self is Mechanism.SCRAM_SHA_256 else "sha512"


class ScramError(KafkaWireError):
    """An invalid message of SCRAM, or an invalid proof; the text is the reason."""


class ScramCredential(Struct, frozen=True, rename="camel"):
    """Data that a server derives from a user's password, for one mechanism."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


class UnknownUsers(Struct, frozen=True):
    """Credentials of a server for names without a user.

    A change of the users changes the salts of all unknown names, but not the salts of the users. So an observer of the
    salts before and after the change can recognize users. The secret is derived from the users, because with a random
    secret each restart would also change these salts.
    """

    secret: bytes
    forms: Mapping[Mechanism, tuple[tuple[int, int], ...]]
    """Size of the salt and number of iterations of each user, by mechanism."""

    @classmethod
    def of(cls, users: Mapping[str, Mapping[Mechanism, ScramCredential]]) -> "UnknownUsers":
        """Return the credentials for a server with these users."""
        hashed = hashlib.sha256(b"unknown users")
        forms: dict[Mechanism, list[tuple[int, int]]] = {}
        for user, known in sorted(users.items()):
            for mechanism, each in sorted(known.items(), key=lambda item: item[0].value):
                hashed.update(hashlib.sha256(f"{user}\n{mechanism.value}".encode()).digest())
                hashed.update(hashlib.sha256(each.stored_key + each.server_key).digest())
                forms.setdefault(mechanism, []).append((len(each.salt), each.iterations))
        return cls(hashed.digest(), {mechanism: tuple(each) for mechanism, each in forms.items()})

    def credential(self, mechanism: Mechanism, user: str) -> ScramCredential:
        """Return a credential that does not match any password, the same for each attempt with this name."""
        forms = self.forms.get(mechanism, ((_SALT_BYTES, MIN_ITERATIONS),))
        drawn = int.from_bytes(hmac.digest(self.secret, b"form" + user.encode(), "sha256"))
        salt_bytes, iterations = forms[drawn % len(forms)]
        digest, size = mechanism.digest, hashlib.new(mechanism.digest).digest_size
        salt = b""
        while len(salt) < salt_bytes:
            salt += hmac.digest(self.secret, b"salt" + salt + user.encode(), digest)
        key = hmac.digest(self.secret, user.encode(), digest)[:size]
        return ScramCredential(salt[:salt_bytes], iterations, key, key)


class UserSource(Protocol):
    """Source of a server's users."""

    @property
    def unknown(self) -> UnknownUsers:
        """Credentials for names without a user."""

    def scram(self, mechanism: Mechanism, user: str) -> ScramCredential | None:
        """Return the credential of this user, or None."""


def scram_credential(
    mechanism: Mechanism, password: str, salt: bytes, iterations: int = MIN_ITERATIONS
) -> ScramCredential:
    """Return the credential of a password; `salt` is random, 16 bytes or more."""
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ValueError(f"{iterations} iterations: from {MIN_ITERATIONS} to {MAX_ITERATIONS} are allowed")
    salted = hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)
    client_key, server_key = _keys(mechanism, salted)
    return ScramCredential(salt, iterations, hashlib.new(mechanism.digest, client_key).digest(), server_key)


class _Exchange(Struct):
    """State of the server between the client's two messages."""

    user: str
    credential: ScramCredential
    is_known: bool
    gs2_header: str
    client_nonce: str
    nonce: str
    """The nonces of both sides, as sent by the server."""
    messages: str
    """The client's first message without its header, and ours: the beginning of the signed text."""


class ScramServer:
    """One attempt of a client. `user` is the authenticated name, once there is one."""

    def __init__(self, mechanism: Mechanism, credentials: UserSource, random_bytes: Callable[[int], bytes]) -> None:
        self._mechanism = mechanism
        self._credentials = credentials
        self._random_bytes = random_bytes
        self._exchange: _Exchange | None = None
        self._ended = False
        self.user: str | None = None

    def respond(self, message: bytes) -> bytes:
        """Return the reply to the client's next message. Raises `ScramError` if it or the proof is invalid."""
        if self._ended:
            raise ScramError("the authentication is over already")
        text = _text(message)
        if self._exchange is None:
            return self._first(text)
        self._ended = True
        return self._final(text, self._exchange)

    def _first(self, text: str) -> bytes:
        flag, _, rest = text.partition(",")
        authorization, _, bare = rest.partition(",")
        fields = _fields(bare, "nr", open_ended=True)
        user = fields["n"].replace("=2C", ",").replace("=3D", "=")
        if flag not in _GS2_HEADERS:
            raise ScramError("the client requires a channel binding, which Kafka does not support")
        if authorization not in ("", f"a={fields['n']}"):
            raise ScramError("the client requests to act for another user")
        if not user or not fields["r"]:
            raise ScramError("the client's first message has an empty name or nonce")
        credential = self._credentials.scram(self._mechanism, user)
        nonce = fields["r"] + b64encode(self._random_bytes(_NONCE_BYTES)).decode()
        used = credential or self._credentials.unknown.credential(self._mechanism, user)
        answer = f"r={nonce},s={b64encode(used.salt).decode()},i={used.iterations}"
        header = f"{flag},{authorization},"
        self._exchange = _Exchange(user, used, credential is not None, header, fields["r"], nonce, f"{bare},{answer}")
        return answer.encode()

    def _final(self, text: str, exchange: _Exchange) -> bytes:
        fields = _fields(text, "crp")
        signed = f"{exchange.messages},{text.rpartition(',p=')[0]}".encode()
        digest, credential = self._mechanism.digest, exchange.credential
        signature = hmac.digest(credential.stored_key, signed, digest)
        proof = _base64(fields["p"])
        if len(proof) != len(signature):
            raise ScramError("the proof has another size than the hash")
        client_key = _xor(proof, signature)
        proven = hmac.compare_digest(hashlib.new(digest, client_key).digest(), credential.stored_key)
        same_header = _base64(fields["c"]) == exchange.gs2_header.encode()
        if fields["r"] != exchange.nonce:
            raise ScramError(_nonce_objection(fields["r"], exchange))
        if not (proven and exchange.is_known and same_header):
            raise ScramError("user, password or mechanism is wrong")
        self.user = exchange.user
        return b"v=" + b64encode(hmac.digest(credential.server_key, signed, digest))


class ScramClient:
    """One attempt to log in."""

    def __init__(self, mechanism: Mechanism, user: str, password: str, random_bytes: Callable[[int], bytes]) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = b64encode(random_bytes(_NONCE_BYTES)).decode()
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """Return the first message."""
        return f"n,,{self._bare}".encode()

    def final(self, answer: bytes) -> bytes:
        """Return the proof, after the server's first message. Raises `ScramError`."""
        text = _text(answer)
        fields = _fields(text, "rsi")
        if not fields["r"].startswith(self._nonce) or fields["r"] == self._nonce:
            raise ScramError("the server answers with another nonce")
        if not fields["i"].isascii() or not fields["i"].isdigit() or len(fields["i"]) > len(str(MAX_ITERATIONS)):
            raise ScramError("the server does not send a number of iterations")
        iterations = int(fields["i"])
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise ScramError(
                f"the server requires {iterations} iterations: the limits are {MIN_ITERATIONS} and {MAX_ITERATIONS}"
            )
        digest = self._mechanism.digest
        salted = hashlib.pbkdf2_hmac(digest, self._password.encode(), _base64(fields["s"]), iterations)
        client_key, server_key = _keys(self._mechanism, salted)
        bare = f"c=biws,r={fields['r']}"
        signed = f"{self._bare},{text},{bare}".encode()
        self._signature = hmac.digest(server_key, signed, digest)
        stored_key = hashlib.new(digest, client_key).digest()
        proof = _xor(client_key, hmac.digest(stored_key, signed, digest))
        return f"{bare},p={b64encode(proof).decode()}".encode()

    def check(self, answer: bytes) -> None:
        """Raise `ScramError` unless the server proves that it has the user's credential."""
        fields = _fields(_text(answer), "v")
        if not hmac.compare_digest(_base64(fields["v"]), self._signature):
            raise ScramError("the server does not know the password: another program may listen there")


class ScramUsers:
    """Credentials in memory."""

    def __init__(self, users: Mapping[str, Mapping[Mechanism, ScramCredential]]) -> None:
        self._users = users
        self.unknown = UnknownUsers.of(users)

    def scram(self, mechanism: Mechanism, user: str) -> ScramCredential | None:
        """See `UserSource.scram`."""
        return self._users.get(user, {}).get(mechanism)


def _nonce_objection(nonce: str, exchange: _Exchange) -> str:
    if nonce == exchange.client_nonce + exchange.nonce:
        return (
            "the client repeats its nonce, which RFC 5802 forbids: librdkafka before 2.6.1 does; use a client with "
            "librdkafka 2.6.1 or later"
        )
    return "the client's last message does not continue the nonce of this login (RFC 5802)"


def _keys(mechanism: Mechanism, salted: bytes) -> tuple[bytes, bytes]:
    digest = mechanism.digest
    return hmac.digest(salted, b"Client Key", digest), hmac.digest(salted, b"Server Key", digest)


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(left, right, strict=True))


def _text(message: bytes) -> str:
    if len(message) > _MAX_MESSAGE_BYTES:
        raise ScramError(f"a message of {len(message)} bytes: {_MAX_MESSAGE_BYTES} are read at most")
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise ScramError("the message is not UTF-8") from error


def _fields(text: str, names: str, *, open_ended: bool = False) -> dict[str, str]:
    """Return the values of exactly these names in this order; other names may follow if extensions are allowed."""
    parts = text.split(",")
    if len(parts) < len(names) or (len(parts) > len(names) and not open_ended):
        raise ScramError(f"the message has not the fields {', '.join(names)}")
    found = {}
    for name, part in zip(names, parts, strict=False):
        if not part.startswith(f"{name}="):
            raise ScramError(f"the message has not the fields {', '.join(names)}")
        found[name] = part[2:]
    return found


def _base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise ScramError("a value of the message is not Base64") from error
