"""Fields that bring an address into the log, gossip, a file or settings have a row in docs/reference/addresses.md.

A wrong address stops a group permanently if the other members accept it and only disconnected members can correct it.
So a row states what accepts the address, whether it is tried, and what corrects it; and it names a test.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache

from tests.structure.sources import ROOT, line_of, modules_in, problem, text_of, tree_of

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
    "consensus/protocols/kraft/operators",
    "consensus/protocols/kraft/wire/control_records.py",
    "consensus/protocols/zmq_raft/peer/open_peer.py",
    "consensus/protocols/zmq_raft/wire/messages.py",
    "consensus/storage",
    "gossip/core/member.py",
    "gossip/node/settings.py",
    "gossip/node/state_files.py",
    "pipeline/source",
)
"""The modules of replicated values, stored values and settings."""
CLASSES = re.compile(r"\b(Address|PeerAddress|Endpoint|Peer|KafkaPeer|NamedVoter|ClusterServer|Server)\b")
NAMES = re.compile(
    r"(^|_)(endpoints?|address(es)?|urls?|hosts?|listeners?|listen|seeds?|peers|advertise|bind|place|servers?|voters"
    r"|bootstrap|destination)(_|$)"
)
NO_ADDRESS = {
    "Address.host": "the type itself",
    "Network.route_host": "a function that asks the operating system",
    "VoterSettings.listener_names": "names of listeners",
    "_BroadcastSocket.url": "the address of a bound socket",
}
PAGE = ROOT / "docs" / "reference" / "addresses.md"


def fields_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name, as `Class.field`, of each field that may hold an address."""
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in owner.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                kind = ast.unparse(node.annotation)
                if CLASSES.search(kind) or (NAMES.search(node.target.id) and re.search(r"\b(str|Destination)\b", kind)):
                    yield node.lineno, f"{owner.name}.{node.target.id}"


def rows() -> list[list[str]]:
    lines = [line for line in text_of(PAGE).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[1:]]


@cache
def _is_test(file: str, name: str) -> bool:
    path = ROOT / file
    return path.is_file() and re.search(rf"(?m)^(async )?def {re.escape(name)}\(", text_of(path)) is not None


def check() -> Iterator[str]:
    """Yield fields without a row, rows without a field, and rows without answers or a test."""
    found = set()
    named = {field for row in rows() for field in re.findall(r"`([A-Za-z]\w*\.[a-z_]+)`", row[0])}
    for room in ROOMS:
        paths = [ROOT / room] if room.endswith(".py") else modules_in(room)
        if not paths:
            yield problem(PAGE, 1, f"{room} does not contain modules")
        for path in paths:
            for line, field in fields_of(tree_of(path)):
                found.add(field)
                if field not in named and field not in NO_ADDRESS:
                    yield problem(path, line, f"{field} is missing from {PAGE.relative_to(ROOT)}: add a row")
    for field in sorted((named | NO_ADDRESS.keys()) - found):
        yield problem(PAGE, line_of(PAGE, field), f"the field {field} does not exist, or is not an address")
    for field in sorted(named & NO_ADDRESS.keys()):
        yield problem(PAGE, line_of(PAGE, field), f"{field} has a row, and is in NO_ADDRESS: remove one")
    yield from _unanswered()


def _unanswered() -> Iterator[str]:
    for row in rows():
        *answers, test = row
        file, _, name = test.strip("`").partition("::")
        if len(answers) != 4 or not all(answers):
            yield problem(PAGE, line_of(PAGE, row[0]), "a row needs four filled cells and a test")
        elif not _is_test(file, name):
            yield problem(PAGE, line_of(PAGE, row[0]), f"no such test: {test}")
