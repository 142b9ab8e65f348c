"""docs/reference/garlic-farm.md is true: servers say what its capture shows, and its tables are complete."""

from pathlib import Path

import trio

from consensus.protocols.garlic_farm.wire.messages import EXCHANGES, REPLY_TYPES, MessageType
from consensus.protocols.garlic_farm.wire.upgrade import EXTENSION_SETS, Extension
from tests.node.garlic_farm_capture import capture

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference" / "garlic-farm.md").read_text()
LONG_S = 60


def without_what_varies(text: str) -> list[str]:
    """A line with a mark keeps only what stands before it."""
    return [line.partition("~")[0].rstrip() for line in text.strip().splitlines()]


async def test_the_capture_in_the_document_is_what_two_servers_say(tmp_path: Path) -> None:
    with trio.fail_after(LONG_S):
        talk = await capture(tmp_path)
    shown = DOCUMENT.partition("```\n")[2].partition("```")[0]
    assert without_what_varies(shown) == without_what_varies(talk.text())


def test_every_message_is_in_the_table() -> None:
    rows = {line.split(" | ")[0].strip("| "): line for line in DOCUMENT.splitlines() if line.startswith("| ")}
    replies = {number: reply for reply, number in REPLY_TYPES.items()}
    for number in MessageType:
        if number <= MessageType.INSTALL_SNAPSHOT_RESPONSE:
            kind = EXCHANGES[number].request if number in EXCHANGES else replies[number]
            assert f"| {kind.__name__} |" in rows[str(number.value)]


def test_every_extension_and_every_name_of_a_set_is_explained() -> None:
    for extension in Extension:
        assert f"| {extension.value} |" in DOCUMENT
    for name in EXTENSION_SETS:
        assert f"| `{name}` |" in DOCUMENT
