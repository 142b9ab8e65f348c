"""docs/reference/garlic-farm.md: two servers send the bytes of its capture, and its tables are complete."""

from pathlib import Path

import trio

from consensus.protocols.garlic_farm.wire.messages import EXCHANGES, REPLY_TYPES, MessageType
from consensus.protocols.garlic_farm.wire.upgrade import EXTENSION_SETS, Extension
from tests.node.garlic_farm_capture import capture

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference" / "garlic-farm.md").read_text()
LONG_S = 60


def constant_parts(text: str) -> list[str]:
    """Return the lines without the varying part after `~`."""
    return [line.partition("~")[0].rstrip() for line in text.strip().splitlines()]


async def test_capture_of_two_servers_matches_document(tmp_path: Path) -> None:
    with trio.fail_after(LONG_S):
        talk = await capture(tmp_path)
    shown = DOCUMENT.partition("```\n")[2].partition("```")[0]
    assert constant_parts(shown) == constant_parts(talk.text())


def test_table_has_every_message() -> None:
    rows = {line.split(" | ")[0].strip("| "): line for line in DOCUMENT.splitlines() if line.startswith("| ")}
    replies = {number: reply for reply, number in REPLY_TYPES.items()}
    for number in MessageType:
        if number <= MessageType.INSTALL_SNAPSHOT_RESPONSE:
            kind = EXCHANGES[number].request if number in EXCHANGES else replies[number]
            assert f"| {kind.__name__} |" in rows[str(number.value)]


def test_extensions_and_names_of_sets_are_explained() -> None:
    for extension in Extension:
        assert f"| {extension.value} |" in DOCUMENT
    for name in EXTENSION_SETS:
        assert f"| `{name}` |" in DOCUMENT
