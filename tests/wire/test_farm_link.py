"""The link of a farm: one text per link, and one error for every other text."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.wire.i2p.farm_link import DIRECTORIES_LIMIT, LINK_LIMIT_CHARACTERS, FarmLink, LinkError, parse_link
from bridge.wire.i2p.structures import I2pError, address_of, hash_of_address
from tests.effort import each_case

HASHES = st.binary(min_size=32, max_size=32)
LINKS = st.builds(FarmLink, HASHES, st.lists(HASHES, min_size=1, max_size=DIRECTORIES_LIMIT, unique=True).map(tuple))
LINK = FarmLink(bytes(32), (bytes([1]) * 32, bytes([2]) * 32))
NAME = "a" * 52


@given(LINKS)
def test_link_text_is_read_as_same_link(link: FarmLink) -> None:
    assert parse_link(str(link)) == link
    assert parse_link(f" {str(link).upper()}\n") == link


@given(LINKS)
def test_link_with_suffixes_is_read_as_same_link(link: FarmLink) -> None:
    text = f"garlicfarm:{link.address}?at={','.join(map(address_of, link.directories))}"
    assert parse_link(text) == link
    assert len(text) <= LINK_LIMIT_CHARACTERS


@given(st.text(max_size=200) | st.text("garlicfm:?at=,&2", max_size=200) | LINKS.map(lambda link: str(link)[:-1]))
def test_arbitrary_text_gives_link_or_link_error(text: str) -> None:
    with suppress(LinkError):
        assert parse_link(str(parse_link(text))) == parse_link(text)


def test_link_has_documented_form() -> None:
    assert str(LINK) == f"garlicfarm:{NAME}?at={','.join(address_of(each)[:52] for each in LINK.directories)}"
    assert str(LINK).startswith("garlicfarm:aaaa")


def test_unknown_parameters_of_link_are_ignored() -> None:
    assert parse_link(f"{LINK}&name=blog") == LINK


@each_case(
    ("text", "reason"),
    [
        ("", "not the link of a farm"),
        ("http://example.i2p/", "not the link of a farm"),
        (f"garlicfarm:{NAME}", "directories 0 times"),
        (f"{LINK}&at={NAME}", "directories 2 times"),
        (f"garlicfarm:{NAME}?at=", "not an I2P address"),
        (f"garlicfarm:{NAME}?at={NAME},{NAME}", "appears twice"),
        (f"garlicfarm:{NAME[1:]}?at={NAME}", "not an I2P address"),
        (f"garlicfarm:{NAME[1:]}b?at={NAME}", "its last letter has nonzero unused bits"),
        (f"garlicfarm:{NAME}?at={','.join(address_of(bytes([n]) * 32) for n in range(17))}", "1 to 16 directories"),
        ("garlicfarm:" + "a" * 2_048, "at most 2048 characters"),
    ],
)
def test_wrong_link_is_refused_with_reason(text: str, reason: str) -> None:
    with pytest.raises(LinkError, match=reason):
        parse_link(text)


@pytest.mark.parametrize("link", [(bytes(31), (bytes(32),)), (bytes(32), (bytes(33),)), (bytes(32), ())])
def test_link_of_wrong_parts_is_refused(link: tuple[bytes, tuple[bytes, ...]]) -> None:
    with pytest.raises(LinkError):
        FarmLink(*link)


@given(st.text("abcxyz234567.i2p", min_size=50, max_size=62))
def test_arbitrary_address_gives_hash_or_i2p_error(text: str) -> None:
    with suppress(I2pError):
        assert address_of(hash_of_address(text)).startswith(text[:52])
