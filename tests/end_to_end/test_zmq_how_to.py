"""docs/how-to/read-the-log-from-node-js.md does what it says: its ten lines run against a node, and so do ours."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
import trio

from bridge.api.log import EntryKind
from bridge.api.view import RaftRole
from consensus.protocols import zmq_raft
from consensus.protocols.zmq_raft import LogEntry, LogEntryKind
from tests.end_to_end.farm import START_BOUND_S, Node
from tests.end_to_end.test_zmq_endpoint import BOUND_S, IDENT, lone_farm

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "how-to" / "read-the-log-from-node-js.md"
PACKAGE = ROOT / "build" / "interop-zmq"
ENTRIES = 5


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, str]]:
    """A node with some entries, as the document has it: open to this machine, read-only, with a broadcast."""
    farm, url, _ = lone_farm(tmp_path_factory.mktemp("zmq"), "")
    with farm:
        (node,) = farm.nodes
        node.start()
        farm.wait_until(lambda: node.view().raft.role is RaftRole.LEADER, START_BOUND_S, "it leads")
        for number in range(ENTRIES):
            node.submit({"note": number})
        yield node, url


def ten_lines() -> str:
    """The program in the document."""
    (program,) = re.findall(r"^```js\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(program.splitlines()) == 10
    return str(program)


def shown(node: Node) -> dict[int, str]:
    """What `GET /v1/log` shows of applications' entries."""
    entries = node.entries().values()
    return {each.index: each.data.decode() for each in entries if each.kind is EntryKind.APPLICATION}


def test_our_client_reads_what_the_control_endpoint_shows(endpoint: tuple[Node, str]) -> None:
    node, url = endpoint
    told = shown(node)

    async def read() -> dict[int, str]:
        with trio.fail_after(BOUND_S):
            async with zmq_raft.connect([url], IDENT) as client, aclosing(client.subscribe(0)) as entries:
                found: dict[int, str] = {}
                async for each in entries:
                    assert isinstance(each, LogEntry)
                    if each.kind is LogEntryKind.STATE:
                        found[each.index] = each.data.decode()
                    if each.index >= max(told):
                        break
                return found

    assert trio.run(read).items() >= told.items()


@pytest.mark.interop
def test_the_ten_lines_print_what_the_control_endpoint_shows(endpoint: tuple[Node, str], tmp_path: Path) -> None:
    program = tmp_path / "log.js"
    if shutil.which("node") is None or not (PACKAGE / "node_modules" / "zmq-raft").is_dir():
        pytest.skip("needs Node and the package: make interop-zmq")
    program.write_text(ten_lines())
    (tmp_path / "node_modules").symlink_to(PACKAGE / "node_modules")
    node, url = endpoint
    told = shown(node)
    last = max(told)
    with subprocess.Popen(["node", program, url, IDENT], stdout=subprocess.PIPE, text=True) as reader:  # noqa: S607
        assert reader.stdout is not None
        try:
            found: dict[int, str] = {}
            node.submit({"note": "while it follows"})
            for line in reader.stdout:
                index, _, value = line.rstrip("\n").partition(" ")
                found[int(index)] = value
                if "while it follows" in value:
                    break
        finally:
            reader.kill()
    assert {index: value for index, value in found.items() if index <= last} == told


def test_the_document_has_a_program_of_ten_lines() -> None:
    assert 'require("zmq-raft")' in ten_lines()
