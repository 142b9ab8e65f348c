"""The head of a reply to an upgrade, as routers' HTTP proxies write it, in pieces of any size."""

import pytest

from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.http_head import HttpHead
from consensus.protocols.garlic_farm.wire.upgrade import HEAD_BYTES_MAX
from tests.effort import each_case

BY_I2PD = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: garlic-farm\r\nConnection: Upgrade\r\r\nX: y\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: garlic-farm\r\nX: y\r\nConnection: Upgrade\r\r\n\r\n",
)
AFTER_HEAD = b"\r\r\n\r\n\r\r\nmessages\r\r\n\r\n"


@each_case("head", BY_I2PD)
@each_case("piece_bytes", [1, 2, 3, 7, 1000])
def test_head_with_double_carriage_return_is_read(head: bytes, piece_bytes: int) -> None:
    http = HttpHead("the server")
    http.request("GET", "/", [("Host", "x"), ("Connection", "Upgrade"), ("Upgrade", "garlic-farm")])
    text = head + AFTER_HEAD
    for start in range(0, len(text), piece_bytes):
        found = http.receive(text[start : start + piece_bytes])
        if found is not None:
            break
    assert found is not None
    status, headers, after = found
    assert (status, headers.one("upgrade")) == (101, "garlic-farm")
    assert after == text[len(head) : start + piece_bytes]


def test_head_of_line_ends_only_is_too_large() -> None:
    http = HttpHead("the server")
    http.request("GET", "/", [("Host", "x")])
    for _ in range(HEAD_BYTES_MAX // 2048):
        assert http.receive(b"\r" * 2048) is None
    with pytest.raises(GarlicFarmError) as caught:
        http.receive(b"\r")
    assert caught.value.fault is Fault.TOO_LARGE
