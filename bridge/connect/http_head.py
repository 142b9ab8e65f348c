"""Heads of HTTP/1.1 requests and responses, as the proxy of `garlicfarm connect` forwards them; pure.

    GET http://NAME/path    absolute form, of a browser with a proxy          ─▶ GET /path at the farm of NAME
    GET /path               origin form, of a program that uses the proxy as a server
    CONNECT NAME:443        ─▶ a tunnel to the farm of NAME

`Host` becomes the address of the farm, so that a service does not see the local name. `Origin` and `Referer` with the
same host become the address, too. Fields for one connection (RFC 9110, section 7.6.1) are removed in both directions.
Nothing is added: no `Via`, no `Forwarded`, no `User-Agent`.

h11 rejects malformed heads, contradicting lengths and encodings other than chunked. This module also rejects heads
that two programs could read in two ways: a length next to chunks, or chunks in HTTP/1.0. It raises `HeadError`.
"""

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from http import HTTPStatus
from typing import Final

import h11
from msgspec import Struct

_CONNECTION: Final = b"connection"
_LENGTH: Final = b"content-length"
_CHUNKED: Final = b"transfer-encoding"
_OF_ONE_CONNECTION: Final = frozenset(
    {
        _CONNECTION,
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"upgrade",
    }
)
_SOURCES: Final = frozenset({b"origin", b"referer"})
_OWN_SITE: Final = frozenset({b"same-origin", b"none"})
"""Values of `Sec-Fetch-Site` for requests of the service's own pages, and of the user."""
_ANSWERED_HERE: Final = frozenset({b"host", b"expect"})
"""Fields of a request that the proxy replaces, or handles without the leaf."""
_AUTHORITY: Final = re.compile(
    r"(?P<host>[a-z0-9_.-]{1,255}|\[[0-9a-f:.]{2,45}\])(?::(?P<port>[0-9]{1,5}))?", re.IGNORECASE
)
_ABSOLUTE: Final = re.compile(rb"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>.*)", re.IGNORECASE)

Fields = list[tuple[bytes, bytes]]


class HeadError(Exception):
    """A request that the proxy does not forward; `status` is the status of the reply, the text has the reason."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class TargetForm(Enum):
    """The form of a request's target."""

    ORIGIN = "origin"
    ABSOLUTE = "absolute"
    TUNNEL = "tunnel"


class Target(Struct, frozen=True):
    """The target of a request: its form, its host in lower case, and the path for the service."""

    form: TargetForm
    host: str
    """The host; empty for a request of HTTP/1.0 without one."""
    path: bytes = b""
    authority: bytes = b""
    """Host and port as the client writes them."""
    is_foreign: bool = False
    """True if a web page of another site sent the request."""


def target_of(request: h11.Request) -> Target:
    """Return the target of a request; raise `HeadError`."""
    fields = dict(request.headers)
    if request.http_version not in (b"1.0", b"1.1"):
        raise HeadError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "this proxy speaks HTTP/1.1 and HTTP/1.0")
    if _CHUNKED in fields and (_LENGTH in fields or request.http_version == b"1.0"):
        raise HeadError(HTTPStatus.BAD_REQUEST, "Transfer-Encoding does not go with Content-Length or HTTP/1.0")
    if request.method == b"CONNECT":
        if _LENGTH in fields or _CHUNKED in fields:
            raise HeadError(HTTPStatus.BAD_REQUEST, "a CONNECT request does not have a body")
        host = host_of(request.target)
        if b":" not in request.target.rpartition(b"]")[2]:
            raise HeadError(HTTPStatus.BAD_REQUEST, "the target of CONNECT is HOST:PORT")
        return Target(TargetForm.TUNNEL, host)
    if request.target.startswith(b"/") or (request.method, request.target) == (b"OPTIONS", b"*"):
        named = fields.get(b"host", b"")
        host, path = host_of(named) if named else "", _checked_path(request.target)
        return Target(TargetForm.ORIGIN, host, path, named, _is_foreign(fields, named))
    found = _ABSOLUTE.fullmatch(request.target)
    if found is None:
        raise HeadError(HTTPStatus.BAD_REQUEST, "the target of the request is neither a path nor an http:// URL")
    if found["scheme"].lower() != b"http":
        text = "only http:// URLs are forwarded; a program reaches a TLS service with CONNECT"
        raise HeadError(HTTPStatus.BAD_REQUEST, text)
    path = found["path"]
    if not path.startswith(b"/"):
        path = b"*" if not path and request.method == b"OPTIONS" else b"/" + path
    return Target(TargetForm.ABSOLUTE, host_of(found["authority"]), _checked_path(path), found["authority"])


def host_of(authority: bytes) -> str:
    """Return the host of `HOST` or `HOST:PORT` in lower case, without a final dot; raise `HeadError`.

    A user name is rejected: `http://ADDRESS.b32.i2p@other/` has the host `other`.
    """
    found = _AUTHORITY.fullmatch(authority.decode("latin-1"))
    if found is None:
        raise HeadError(HTTPStatus.BAD_REQUEST, "the host of the request is not HOST or HOST:PORT")
    return found["host"].lower().removesuffix(".")


def request_head(request: h11.Request, target: Target, address: str) -> h11.Request:
    """Return the head of a request for a leaf of the farm with this address."""
    fields = [
        (name, _at_farm(value, target.authority, address) if name.lower() in _SOURCES else value)
        for name, value in _forwarded(request.headers.raw_items(), _ANSWERED_HERE)
    ]
    return h11.Request(method=request.method, target=target.path, headers=[(b"Host", address.encode()), *fields])


def response_fields(response: h11.Response) -> Fields:
    """Return the fields of a response for the client of the proxy. A chunked response loses its length field."""
    is_chunked = any(name == _CHUNKED for name, _ in response.headers)
    return _forwarded(response.headers.raw_items(), {_LENGTH} if is_chunked else frozenset())


def _at_farm(source: bytes, authority: bytes, address: str) -> bytes:
    """Return the value of `Origin` or `Referer`, with the farm's address in place of the request's host."""
    own = b"http://" + authority
    rest = source[len(own) :]
    if source[: len(own)].lower() != own.lower() or rest[:1] not in (b"", b"/"):
        return source
    return b"http://" + address.encode() + rest


def _is_foreign(fields: Mapping[bytes, bytes], authority: bytes) -> bool:
    """Return True if a browser reports that a page of another site sent a request."""
    origin = fields.get(b"origin", b"http://" + authority)
    return fields.get(b"sec-fetch-site", b"none") not in _OWN_SITE or origin.lower() != b"http://" + authority.lower()


def _checked_path(path: bytes) -> bytes:
    if b"#" in path:
        raise HeadError(HTTPStatus.BAD_REQUEST, "the target of a request does not have a fragment (#)")
    return path


def _forwarded(items: Iterable[tuple[bytes, bytes]], removed: frozenset[bytes] | set[bytes]) -> Fields:
    fields = list(items)
    named = {
        each.strip().lower() for name, value in fields if name.lower() == _CONNECTION for each in value.split(b",")
    }
    # Fields that delimit the body are kept, even if `Connection` names them.
    dropped = (_OF_ONE_CONNECTION | removed | named) - ({_LENGTH, _CHUNKED} - removed)
    return [(name, value) for name, value in fields if name.lower() not in dropped]
