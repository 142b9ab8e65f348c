"""The links of `garlicfarm connect`: arguments, and a file with a link on each line.

    # ~/.config/garlicfarm/connect.links
    garlicfarm:ADDRESS?at=DIRECTORY,DIRECTORY   name=shop listen=127.0.0.1:8080
    garlicfarm:ADDRESS?at=DIRECTORY             name=wiki

`name` is the host of `http://shop/` in the HTTP proxy, the word in the status and the label of metrics. `listen` is a
TCP port that leads to this farm. Empty lines and lines that begin with `#` are ignored. A fault in a line is a
`LinksError` with the number of the line.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bridge.wire.i2p.farm_link import FarmLink, LinkError, parse_link
from gossip import Address
from gossip.node import endpoint, numeric_address

LINKS_MAX: Final = 16
"""Links of one client: each has two sessions in the router, with tunnels."""
FILE_LIMIT_BYTES: Final = 256 * 1024
_NAME: Final = re.compile(r"[a-z](?:[a-z0-9.-]{0,61}[a-z0-9])?")
_RESERVED: Final = ("localhost", ".localhost", ".b32.i2p")
"""Reserved names and suffixes."""


class LinksError(Exception):
    """A link or a line of the links file is not usable; the text has the place, the reason and the remedy."""


class LinkLine(Struct, frozen=True):
    """One link of the command."""

    link: FarmLink
    name: str | None = None
    listen: Address | None = None


def parse_links(text: str, place: str) -> tuple[LinkLine, ...]:
    """Return the links of a file's text; raise `LinksError`. `place` names the file."""
    found = tuple(_lines(text, place))
    if not found:
        raise LinksError(f"{place} does not have a link: write one on each line, as the operator of the farm gives it")
    return found


def read_links(path: Path) -> tuple[LinkLine, ...]:
    """Return the links of a file; raise `LinksError` and `OSError`."""
    with path.open("rb") as file:
        data = file.read(FILE_LIMIT_BYTES + 1)
    if len(data) > FILE_LIMIT_BYTES:
        raise LinksError(f"{path} has more than {FILE_LIMIT_BYTES} bytes: it is not a links file")
    return parse_links(data.decode("utf-8", "replace"), str(path))


def checked_links(lines: Iterable[LinkLine]) -> tuple[LinkLine, ...]:
    """Return the links of a command; raise `LinksError` if two of them have one address, name or port."""
    links = tuple(lines)
    if len(links) > LINKS_MAX:
        raise LinksError(
            f"{len(links)} links are too many: a client has {LINKS_MAX} at most, each with two sessions in the router"
        )
    _check_unique("the address", (each.link.address for each in links))
    _check_unique("the name", (each.name for each in links))
    _check_unique("the port", (endpoint(each.listen) for each in links if each.listen is not None))
    return links


def _check_unique(what: str, values: Iterable[object]) -> None:
    seen = set()
    for value in values:
        if value is not None and value in seen:
            raise LinksError(f"two links have {what} {value}: remove one of them")
        seen.add(value)


def _lines(text: str, place: str) -> Iterator[LinkLine]:
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            yield _line(words)
        except (LinkError, ValueError) as error:
            raise LinksError(f"line {number} of {place}: {error}") from error


def _line(words: list[str]) -> LinkLine:
    found = LinkLine(parse_link(words[0]))
    for word in words[1:]:
        key, equals, value = word.partition("=")
        match key, equals:
            case "name", "=":
                found = replace(found, name=link_name(value))
            case "listen", "=":
                found = replace(found, listen=numeric_address(value))
            case _:
                raise ValueError(f"{word[:60]!r} is neither name=NAME nor listen=HOST:PORT")
    return found


def link_name(text: str) -> str:
    """Return a name for a link; raise `ValueError`."""
    if _NAME.fullmatch(text) is None or text.endswith(_RESERVED):
        raise ValueError(
            f"{text[:60]!r} is not a name for a link: use lower case letters, then digits, dots and hyphens, too; not"
            " localhost, and not an address"
        )
    return text
