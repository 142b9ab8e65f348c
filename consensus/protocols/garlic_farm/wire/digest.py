"""HTTP Digest authentication (RFC 2617, with the SHA-256 of RFC 7616): the computations and headers of both sides.

    response = H( H(user:realm:password) : nonce : nc : cnonce : auth : H(method:uri) )

Only `qop=auth` is supported: without `qop` a request lacks `nc`, so an attacker could repeat a recorded request.
Headers are parsed by hand, because the standard library's parser is too lenient for a server. Every flaw raises the
same error.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from enum import Enum

from msgspec import Struct

from consensus.protocols.garlic_farm.wire.errors import malformed

_PARAMETER = re.compile(r'[ \t]*([A-Za-z0-9*_-]{1,32})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s",;]+))[ \t]*(?:,|$)')
_PARAMETERS_MAX = 24
NONCE_COUNT_MAX = 2**32 - 1
_QUOTED_PAIR = re.compile(r"\\(.)")
_NONCE_COUNT = re.compile(r"[0-9a-fA-F]{8}")


class Algorithm(Enum):
    """Hash functions by their names in the header. RFC 2617 has only MD5; TLS or I2P protects the connection."""

    MD5 = "MD5"
    SHA_256 = "SHA-256"

    def digest(self, *parts: str) -> str:
        """Return the lower-case hexadecimal hash of `parts` joined by colons."""
        data = ":".join(parts).encode()
        if self is Algorithm.MD5:
            return hashlib.md5(data, usedforsecurity=False).hexdigest()
        return hashlib.sha256(data).hexdigest()


class Credentials(Struct, frozen=True):
    """A user of the farm. The operator decides if all servers share one user or each server has its own."""

    user: str
    password: str

    def __post_init__(self) -> None:
        """Refuse values that RFC 2617 cannot encode, or that cannot be part of a header or of a hash."""
        if not self.user.isascii() or not self.user.isprintable() or ":" in self.user or not self.password.isascii():
            raise malformed("user and password must be ASCII, and the user printable and without a colon")

    def __repr__(self) -> str:
        """Return a form without the password: representations end up in error texts."""
        return f"Credentials(user={self.user!r})"


class Challenge(Struct, frozen=True):
    """The challenge of a 401."""

    realm: str
    nonce: str
    algorithm: Algorithm
    opaque: str | None = None
    stale: bool = False

    def header(self) -> str:
        """Return the value of a WWW-Authenticate header."""
        opaque = "" if self.opaque is None else f', opaque="{_escaped(self.opaque)}"'
        stale = ", stale=true" if self.stale else ""
        return (
            f'Digest realm="{_escaped(self.realm)}", qop="auth", algorithm={self.algorithm.value}, '
            f'nonce="{self.nonce}"{opaque}{stale}'
        )

    def authorization(
        self, credentials: Credentials, target: tuple[str, str], nonce_count: int, client_nonce: str
    ) -> "Authorization":
        """Return the answer that proves the password for `target` (method and URI)."""
        return Authorization(
            credentials.user,
            self.realm,
            self.nonce,
            target[1],
            nonce_count,
            client_nonce,
            self.algorithm,
            response_to(self, credentials, target, nonce_count, client_nonce),
            self.opaque,
        )


class Authorization(Struct, frozen=True):
    """A client's answer to a challenge."""

    user: str
    realm: str
    nonce: str
    uri: str
    nonce_count: int
    client_nonce: str
    algorithm: Algorithm
    response: str
    opaque: str | None = None

    def header(self) -> str:
        """Return the value of an Authorization header."""
        opaque = "" if self.opaque is None else f', opaque="{_escaped(self.opaque)}"'
        return (
            f'Digest username="{_escaped(self.user)}", realm="{_escaped(self.realm)}", nonce="{_escaped(self.nonce)}", '
            f'uri="{_escaped(self.uri)}", algorithm={self.algorithm.value}, qop=auth, nc={self.nonce_count:08x}, '
            f'cnonce="{_escaped(self.client_nonce)}", response="{self.response}"{opaque}'
        )

    def proves(self, password: str, method: str) -> bool:
        """Return True if the sender knew `password`; takes the same time either way."""
        expected = response_to(
            Challenge(self.realm, self.nonce, self.algorithm),
            Credentials(self.user, password),
            (method, self.uri),
            self.nonce_count,
            self.client_nonce,
        )
        return hmac.compare_digest(expected.encode(), self.response.encode())


def response_to(
    challenge: Challenge, credentials: Credentials, target: tuple[str, str], nonce_count: int, client_nonce: str
) -> str:
    """Return the `response` that proves the password for `target` (method and uri)."""
    digest = challenge.algorithm.digest
    return digest(
        digest(credentials.user, challenge.realm, credentials.password),
        challenge.nonce,
        f"{nonce_count:08x}",
        client_nonce,
        "auth",
        digest(*target),
    )


def parse_challenge(header: str) -> Challenge | None:
    """Return the challenge of one WWW-Authenticate header, or None if it is not supported here."""
    parameters = _digest_parameters(header)
    if parameters is None:
        return None
    algorithm = _algorithm(parameters)
    offered = {option.strip().lower() for option in parameters.get("qop", "").split(",")}
    if algorithm is None or "auth" not in offered:
        return None
    return Challenge(
        _required(parameters, "realm"),
        _required(parameters, "nonce"),
        algorithm,
        parameters.get("opaque"),
        parameters.get("stale", "").lower() == "true",
    )


def best_challenge(headers: Iterable[str]) -> Challenge | None:
    """Return the challenge with the strongest algorithm of the WWW-Authenticate headers, or None."""
    found = [challenge for header in headers if (challenge := parse_challenge(header)) is not None]
    return next((each for each in found if each.algorithm is Algorithm.SHA_256), found[0] if found else None)


def parse_authorization(header: str) -> Authorization | None:
    """Return the answer in an Authorization header, or None if it is not a supported form of Digest."""
    parameters = _digest_parameters(header)
    if parameters is None:
        return None
    algorithm = _algorithm(parameters)
    if algorithm is None or parameters.get("qop", "").lower() != "auth":
        return None
    nonce_count = _required(parameters, "nc")
    if not _NONCE_COUNT.fullmatch(nonce_count):
        raise malformed("nc of a Digest authorization is not eight hexadecimal digits")
    return Authorization(
        _required(parameters, "username"),
        _required(parameters, "realm"),
        _required(parameters, "nonce"),
        _required(parameters, "uri"),
        int(nonce_count, 16),
        _required(parameters, "cnonce"),
        algorithm,
        _required(parameters, "response").lower(),
        parameters.get("opaque"),
    )


def _digest_parameters(header: str) -> dict[str, str] | None:
    scheme, _, rest = header.strip().partition(" ")
    if scheme.lower() != "digest":
        return None
    if not header.isascii() or not header.isprintable():
        raise malformed("a Digest header has characters that are not printable ASCII")
    parameters: dict[str, str] = {}
    at = 0
    while at < len(rest):
        found = _PARAMETER.match(rest, at)
        if found is None or len(parameters) == _PARAMETERS_MAX:
            raise malformed("a Digest header is not a list of name=value")
        name = found[1].lower()
        if name in parameters:
            raise malformed(f"a Digest header names {name} twice")
        parameters[name] = found[3] if found[2] is None else _QUOTED_PAIR.sub(r"\1", found[2])
        at = found.end()
    return parameters


def _algorithm(parameters: Mapping[str, str]) -> Algorithm | None:
    name = parameters.get("algorithm", Algorithm.MD5.value).upper()
    return next((algorithm for algorithm in Algorithm if algorithm.value == name), None)


def _required(parameters: Mapping[str, str], name: str) -> str:
    value = parameters.get(name)
    if value is None:
        raise malformed(f"a Digest header lacks {name}")
    return value


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
