"""The link of a farm: a URI that an operator gives to users, with the address and the directories that serve it.

    garlicfarm:<address>?at=<directory>,<directory>,…

    address      52 base32 characters: the hash of the master's destination
    directory    52 base32 characters each, 1 to 16: I2P destinations that return the address's signed structure

Letters may be in either case, and each name may end with `.b32.i2p`. Other parameters of the query are ignored, so that
later versions can add some. The link does not contain a secret. A changed link can only name other directories, and the
address must have signed each returned structure.
"""

from typing import Final

from msgspec import Struct

from bridge.wire.i2p.structures import ADDRESS_SUFFIX, HASH_BYTES, I2pError, address_of, hash_of_address

SCHEME: Final = "garlicfarm"
DIRECTORIES_LIMIT: Final = 16
LINK_LIMIT_CHARACTERS: Final = 2_048
"""Limit of characters; a link with 16 directories, each with its ending, has fewer."""
EXAMPLE: Final = f"{SCHEME}:ADDRESS?at=DIRECTORY,DIRECTORY"


class LinkError(ValueError):
    """The text is not the link of a farm; the message contains the reason and the expected form."""


class FarmLink(Struct, frozen=True):
    """The address of a farm, and the directories in the order of the link; `str` returns the URI."""

    address_hash: bytes
    directories: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.directories) <= DIRECTORIES_LIMIT:
            raise LinkError(f"a link names 1 to {DIRECTORIES_LIMIT} directories, not {len(self.directories)}")
        if any(len(each) != HASH_BYTES for each in (self.address_hash, *self.directories)):
            raise LinkError(f"the hash of a destination has {HASH_BYTES} bytes")
        if len(set(self.directories)) != len(self.directories):
            raise LinkError("a directory appears twice in the link")

    @property
    def address(self) -> str:
        """The `.b32.i2p` address of the farm."""
        return address_of(self.address_hash)

    def __str__(self) -> str:
        return f"{SCHEME}:{_name(self.address_hash)}?at={','.join(map(_name, self.directories))}"


def parse_link(text: str) -> FarmLink:
    """Read a link; surrounding white space is ignored. Raise `LinkError` only."""
    if len(text) > LINK_LIMIT_CHARACTERS:
        raise LinkError(f"a link has at most {LINK_LIMIT_CHARACTERS} characters, not {len(text)}")
    scheme, colon, rest = text.strip().partition(":")
    if not colon or scheme.lower() != SCHEME:
        raise LinkError(f"{text[:64]!r} is not the link of a farm; it has the form {EXAMPLE}")
    address, _, query = rest.partition("?")
    named = [value for key, _, value in (part.partition("=") for part in query.split("&")) if key.lower() == "at"]
    if len(named) != 1:
        raise LinkError(f"the link names its directories {len(named)} times instead of once: {EXAMPLE}")
    try:
        return FarmLink(hash_of_address(address), tuple(map(hash_of_address, named[0].split(","))))
    except I2pError as error:
        raise LinkError(f"{error}; a link has the form {EXAMPLE}") from None


def _name(destination_hash: bytes) -> str:
    return address_of(destination_hash).removesuffix(ADDRESS_SUFFIX)
