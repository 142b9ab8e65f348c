"""docs/how-to/read-the-log-from-node-js.md: its ten lines run against a node, and our client reads the same."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from threading import Timer

import pytest
import trio

from bridge.api.log import EntryKind
from bridge.api.view import RaftRole
from bridge.node.security.key_files import load_curve_key
from bridge.wire.keys.curve_key import to_z85
from consensus.protocols import zmq_raft
from consensus.protocols.zmq_raft import CommittedEntry, LogEntryKind
from tests.end_to_end.farm import START_BOUND_S, Node
from tests.end_to_end.test_zmq_endpoint import BOUND_S, IDENT, READER, lone_farm
from tests.processes import child

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "how-to" / "read-the-log-from-node-js.md"
PACKAGE = ROOT / "build" / "interop-zmq"
ENTRIES = 5


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, str]]:
    """Start a node as in the document, with some entries: open to this machine, read-only, with a broadcast."""
    farm, url, _ = lone_farm(tmp_path_factory.mktemp("zmq"), "")
    with farm:
        (node,) = farm.nodes
        node.start()
        farm.wait_until(lambda: node.view().raft.role is RaftRole.LEADER, START_BOUND_S, "the node leads")
        for number in range(ENTRIES):
            node.submit({"note": number})
        yield node, url


def programs(language: str) -> list[str]:
    text = DOCUMENT.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def ten_lines() -> str:
    (found,) = programs("js")
    return found


def application_entries(node: Node) -> dict[int, str]:
    """Return the applications' entries of `GET /v1/log`."""
    entries = node.entries().values()
    return {each.index: each.data.decode() for each in entries if each.kind is EntryKind.APPLICATION}


def test_client_reads_entries_of_control_endpoint(endpoint: tuple[Node, str]) -> None:
    node, url = endpoint
    expected = application_entries(node)

    async def read() -> dict[int, str]:
        with trio.fail_after(BOUND_S):
            async with zmq_raft.connect([url], IDENT) as client, aclosing(client.subscribe(0)) as entries:
                found: dict[int, str] = {}
                async for each in entries:
                    assert isinstance(each, CommittedEntry)
                    if each.kind is LogEntryKind.STATE:
                        found[each.index] = each.data.decode()
                    if each.index >= max(expected):
                        break
                return found

    assert trio.run(read).items() >= expected.items()


@contextmanager
def node_js(directory: Path, text: str, url: str, keys: dict[str, str] | None = None) -> Iterator[Iterator[str]]:
    """Run a program; yield its output lines, for a limited time."""
    if shutil.which("node") is None or not (PACKAGE / "node_modules" / "zmq-raft").is_dir():
        pytest.skip("needs Node and the package: make interop-zmq")
    file = directory / "log.js"
    file.write_text(text)
    (directory / "node_modules").symlink_to(PACKAGE / "node_modules")
    command = ["node", str(file), url, IDENT]
    with child(command, env={**os.environ, **(keys or {})}) as reader:
        assert reader.stdout is not None
        # The timer limits the wait for a program without output.
        bound = Timer(BOUND_S, reader.kill)
        bound.start()
        try:
            yield iter(reader.stdout)
        finally:
            bound.cancel()


@pytest.mark.interop
def test_ten_lines_print_entries_of_control_endpoint(endpoint: tuple[Node, str], tmp_path: Path) -> None:
    node, url = endpoint
    expected = application_entries(node)
    with node_js(tmp_path, ten_lines(), url) as lines:
        found: dict[int, str] = {}
        node.submit({"note": "while it follows"})
        for line in lines:
            index, _, value = line.rstrip("\n").partition(" ")
            found[int(index)] = value
            if "while it follows" in value:
                break
    assert {index: value for index, value in found.items() if index <= max(expected)} == expected


@pytest.mark.interop
def test_listed_client_follows_with_keys_of_document(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"reader {to_z85(READER.public)}\n")
    keys.chmod(0o600)
    farm, url, _ = lone_farm(tmp_path, f'keys = "{keys}"\n')
    options = "{ secret: ident, lastIndex: 0"
    assert options in ten_lines()
    before, after = programs("javascript")
    text = before + ten_lines().replace(options, f"{options}, sockopts") + after
    with farm:
        (node,) = farm.nodes
        node.start()
        farm.wait_until(lambda: node.view().raft.role is RaftRole.LEADER, START_BOUND_S, "the node leads")
        shown_keys = {
            "NODE_PUBLIC_KEY": to_z85(load_curve_key(node.directory / "zmq.key").public),
            "PUBLIC_KEY": to_z85(READER.public),
            "SECRET_KEY": to_z85(READER.secret),
        }
        with node_js(tmp_path, text, url, shown_keys) as lines:
            next(lines)
            node.submit({"note": "while it follows"})
            assert any("while it follows" in line for line in lines)


def test_document_program_has_ten_lines() -> None:
    assert len(ten_lines().splitlines()) == 10
    assert 'require("zmq-raft")' in ten_lines()
