"""Each field that brings an address into the log, gossip, a file or settings has a row in docs/reference/addresses.md.

A wrong address that others believe, and that can be corrected only by those whom it cuts off, stops a group for ever.
So a new field needs an answer: who believes it, is it tried, who corrects it; and a test of the answer.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOMS = (
    "bridge/core/formation",
    "bridge/core/log",
    "bridge/core/membership",
    "bridge/core/state",
    "bridge/node/local",
    "bridge/node/membership",
    "bridge/node/offline",
    "bridge/node/settings",
    "bridge/wire/keys",
    "bridge/wire/log",
    "bridge/wire/membership",
    "consensus/core/entry_data.py",
    "consensus/core/model.py",
    "consensus/protocols/garlic_farm/wire/values.py",
    "consensus/protocols/kraft/node/operators",
    "consensus/protocols/kraft/wire/control_records.py",
    "consensus/protocols/zmq_raft/peer/open_peer.py",
    "consensus/protocols/zmq_raft/wire/messages.py",
    "consensus/storage",
    "gossip/core/member.py",
    "gossip/node/settings.py",
    "gossip/node/state_files.py",
    "pipeline/source",
)
"""Where the values live that are replicated, stored, or read from settings."""
CLASSES = re.compile(r"\b(Address|PeerAddress|Endpoint|Peer|KafkaPeer|InitialVoter|StaticVoter|ClusterServer|Server)\b")
NAMES = re.compile(
    r"(^|_)(endpoints?|address(es)?|urls?|hosts?|listeners?|listen|seeds?|peers|advertise|bind|place|servers?|voters"
    r"|bootstrap|destination)(_|$)"
)
NO_ADDRESS = {
    "Address.host": "the type itself",
    "Network.route_host": "a function that asks the operating system",
    "VoterSettings.listener_names": "names of listeners",
    "_Broadcast.url": "of a socket that is bound",
}
PAGE = Path("docs/reference/addresses.md")


def fields_of(tree: ast.AST) -> Iterator[str]:
    """The fields of classes that may hold an address, as `Class.field`."""
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in owner.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                kind = ast.unparse(node.annotation)
                if CLASSES.search(kind) or (NAMES.search(node.target.id) and re.search(r"\b(str|Destination)\b", kind)):
                    yield f"{owner.name}.{node.target.id}"


def found() -> set[str]:
    files = [file for room in map(Path, ROOMS) for file in ([room] if room.suffix else sorted(room.rglob("*.py")))]
    assert files
    return {field for file in files for field in fields_of(ast.parse(file.read_text(encoding="utf-8")))}


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[1:]]


def named() -> set[str]:
    return {field for row in rows() for field in re.findall(r"`([A-Za-z]\w*\.[a-z_]+)`", row[0])}


def test_each_field_with_an_address_has_a_row() -> None:
    missing = found() - named() - NO_ADDRESS.keys()
    assert not missing, f"fields without a row in {PAGE}: {sorted(missing)}"


def test_each_row_names_a_field_that_exists() -> None:
    gone = (named() | NO_ADDRESS.keys()) - found()
    assert not gone, f"no such fields with an address: {sorted(gone)}"
    assert not named() & NO_ADDRESS.keys()


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:30])
def test_each_row_has_answers_and_a_test(row: list[str]) -> None:
    *answers, test = row
    assert len(answers) == 4
    assert all(answers)
    file, _, name = test.strip("`").partition("::")
    assert re.search(rf"(?m)^(async )?def {re.escape(name)}\(", Path(file).read_text(encoding="utf-8")), test


def test_a_new_field_is_found() -> None:
    """Of a class of addresses by its type, of a text by its name."""
    planted = "class Planted:\n    contact: Address | None\n    last_endpoint: str\n    term: int\n    name: str\n"
    assert list(fields_of(ast.parse(planted))) == ["Planted.contact", "Planted.last_endpoint"]
