"""Heads of the HTTP proxy: for any bytes of a client, one error type and a request for the named farm only."""

import h11
from hypothesis import given
from hypothesis import strategies as st

from bridge.connect.http_head import HeadError, TargetForm, host_of, request_head, target_of
from tests.node.fake_farm import ADDRESS

HOP_BY_HOP = ("connection", "keep-alive", "proxy-connection", "proxy-authorization", "te", "trailer", "upgrade")
METHODS = (b"GET", b"POST", b"CONNECT", b"OPTIONS", b"PRI")
PIECES = (
    b"http://", b"https://", b"HTTP:", b"//", b"/", b"*", b"?a=1", b"#", b"@", b":80", b":99999", b"[::1]",
    b"127.0.0.1", b"localhost", ADDRESS.encode(), ADDRESS.upper().encode(), b".",
    b"%2e", b"..", b"user:pass", b"example.com", b"\\",
)  # fmt: skip
FIELDS = tuple(
    (name.encode(), value)
    for name in (*HOP_BY_HOP, "content-length", "transfer-encoding", "x-kept", "cookie", "origin", "referer")
    for value in (b"1", b"chunked", b"close, x-kept", b"host, content-length", b"keep-alive")
)


def parsed(method: bytes, target: bytes, fields: list[tuple[bytes, bytes]], version: bytes) -> h11.Request | None:
    """Return the request as h11 receives it; None if h11 rejects it."""
    lines = [b"%s %s HTTP/%s" % (method, target, version), b"Host: " + ADDRESS.encode()]
    lines += [b"%s: %s" % field for field in fields]
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(b"\r\n".join([*lines, b"", b""]))
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError:
        return None
    return event if isinstance(event, h11.Request) else None


@given(
    st.sampled_from(METHODS),
    st.lists(st.sampled_from(PIECES) | st.binary(max_size=3), min_size=1, max_size=5).map(b"".join),
    st.lists(st.sampled_from(FIELDS), max_size=4),
    st.sampled_from((b"1.0", b"1.1", b"2.0")),
)
def test_head_gives_clean_request_or_head_error(
    method: bytes, target: bytes, fields: list[tuple[bytes, bytes]], version: bytes
) -> None:
    request = parsed(method, target, fields, version)
    if request is None:
        return
    try:
        found = target_of(request)
    except HeadError:
        return
    if found.form is TargetForm.TUNNEL:
        return
    head = request_head(request, found, ADDRESS)
    named = [name.decode() for name, _ in head.headers]
    assert dict(head.headers)[b"host"] == ADDRESS.encode()
    assert named.count("host") == 1
    assert not {*named} & {*HOP_BY_HOP}
    assert head.target.startswith(b"/") or head.target == b"*"
    assert ("content-length" in named) + ("transfer-encoding" in named) <= 1
    # A field named in `Connection` is removed, except the two fields that determine the length of the body.
    for frame in (b"content-length", b"transfer-encoding"):
        assert (frame.decode() in named) == (frame in dict(request.headers))


@given(st.binary(max_size=60))
def test_authority_gives_plain_host_or_head_error(authority: bytes) -> None:
    try:
        host = host_of(authority)
    except HeadError:
        return
    assert host == host.lower()
    assert not {*host} & {*"/?#@ \\%"}
