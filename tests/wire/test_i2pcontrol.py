"""I2PControl's JSON: replies of a router become facts, unknown values, or one error."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.log.figures import FIGURES
from bridge.wire.i2p.i2pcontrol import (
    KEYS,
    I2PControlError,
    RouterFacts,
    decode_reply,
    encode_request,
    facts_of,
    token_of,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


def test_request_is_json_rpc_2() -> None:
    assert json.loads(encode_request(7, "Authenticate", {"API": 1, "Password": "word"})) == {
        "jsonrpc": "2.0",
        "id": "7",
        "method": "Authenticate",
        "params": {"API": 1, "Password": "word"},
    }


@given(st.binary(max_size=200))
def test_arbitrary_bytes_give_result_or_i2pcontrol_error(data: bytes) -> None:
    with suppress(I2PControlError):
        assert isinstance(decode_reply(data), dict)


@given(st.dictionaries(st.sampled_from(KEYS), JSON), JSON)
def test_arbitrary_figures_give_facts_within_bounds(info: dict[str, object], rate: object) -> None:
    found = facts_of(info, {"i2p.router.net.bw.in": rate, "i2p.router.net.bw.out": rate}, {"Result": rate})
    values = [figure.of(found.report) for figure in FIGURES.values()]
    assert all(value is None or 0 <= value <= 2**64 for value in values)
    assert found.version is None or found.version.isprintable()


def test_empty_replies_give_unknown_facts() -> None:
    assert facts_of({}, {}, {}) == RouterFacts()


@pytest.mark.parametrize("token", [None, "", 5, "x" * 1025])
def test_invalid_token_raises_i2pcontrol_error(token: object) -> None:
    with pytest.raises(I2PControlError, match="lacks a token"):
        token_of({"Token": token})


def test_error_text_has_number_without_control_characters() -> None:
    with pytest.raises(I2PControlError, match=r"Invalid\[0m password \(error -32001\)") as refused:
        decode_reply(b'{"error": {"code": -32001, "message": "Invalid\\u001b[0m password"}}')
    assert refused.value.code == -32001
