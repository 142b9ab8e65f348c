"""CURVE keys: Z85 (RFC 32), and key files, which round-trip or are refused without showing a secret."""

from random import Random

import pytest

from bridge.wire.keys.curve_key import CurveKey, curve_key_text, from_z85, new_curve_key, parse_curve_key, to_z85
from bridge.wire.keys.text import KeyTextError
from tests.effort import each_case

RFC_32 = bytes.fromhex("864fd26fb559f75b")
RFC_26_SERVER = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"


def test_z85_example_of_rfc_32() -> None:
    assert to_z85(RFC_32) == "HelloWorld"


def test_z85_key_of_zmq_documentation_round_trips() -> None:
    key = from_z85(RFC_26_SERVER)
    assert key is not None
    assert len(key) == 32
    assert to_z85(key) == RFC_26_SERVER


@each_case("text", ["", "x", RFC_26_SERVER[:-1], RFC_26_SERVER + "0", "~" * 40, '"' * 40, "#" * 40])
def test_invalid_z85_text_is_refused(text: str) -> None:
    assert from_z85(text) is None


def test_curve_key_file_round_trips() -> None:
    key = new_curve_key("reader")
    assert parse_curve_key(curve_key_text(key)) == key
    assert to_z85(key.secret) not in repr(key)


def test_invalid_curve_key_name_is_refused() -> None:
    with pytest.raises(KeyTextError, match="1 to 32 letters"):
        new_curve_key("two words")


def test_changed_file_error_does_not_show_secret() -> None:
    key, random = new_curve_key("reader"), Random(7)
    text, secret = curve_key_text(key), to_z85(key.secret)
    refused = 0
    for _ in range(200):
        place = random.randrange(text.index("public_key"), len(text))
        damaged = text[:place] + random.choice('aZ9#{"\n') + text[place + 1 :]
        found = parse(damaged)
        if isinstance(found, str):
            refused += 1
            assert secret[:10] not in found
        else:
            assert found.public == key.public, damaged
    assert refused > 100
    with pytest.raises(KeyTextError, match="version 2"):
        parse_curve_key(text.replace("version = 1", "version = 2"))


def parse(text: str) -> CurveKey | str:
    try:
        return parse_curve_key(text)
    except KeyTextError as error:
        return str(error)
