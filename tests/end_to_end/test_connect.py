"""`garlicfarm up`, `link` and `connect`: a client reaches the leaves of a farm, and continues after the loss of one."""

import re
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from tests.end_to_end.farm import START_BOUND_S, call, command, wait_until
from tests.end_to_end.settings import LOOPBACK, free_port
from tests.end_to_end.up_process import Up, running_up
from tests.processes import child

REQUESTS = 20
LONGEST_S = 8.0
"""Limit of a request while a leaf is dead; without a stream after 2.5 s, the client tries the next leaf too."""
PAGE = re.compile(r"(node-\d) served request (\d+) at its leaf [a-z2-7]{52}\.b32\.i2p\n")


class Client:
    """A running `garlicfarm connect`, and the pages that it returned."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.numbers: dict[str, list[int]] = defaultdict(list)
        """For each node, the request numbers that its leaf counted."""
        self.longest_s = 0.0

    def get(self) -> str:
        """Send one request; return the name of the node that served it."""
        began_s = time.monotonic()
        connection = HTTPConnection(LOOPBACK, self._port, timeout=START_BOUND_S)
        try:
            connection.request("GET", "/")
            found = PAGE.fullmatch(connection.getresponse().read().decode())
        finally:
            connection.close()
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)
        assert found is not None
        self.numbers[found[1]].append(int(found[2]))
        return found[1]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with running_up(tmp_path / "farm") as started:
        started.wait_for("(entries: 3)")
        yield started


@pytest.fixture
def client(up: Up, tmp_path: Path) -> Iterator[Client]:
    """Start a client with the link that a node prints."""
    found = re.search(r" --sam (\S+) ", up.output)
    assert found is not None
    port = free_port(socket.SOCK_STREAM)
    link = wait_link(up.directory / "node-1")
    options = ("--listen", f"{LOOPBACK}:{port}", "--socket", tmp_path / "socket", "--cache", tmp_path / "cache")
    with child(command("connect", link, "--sam", found[1], *options)):
        made = Client(port)
        wait_until(lambda: is_reached(made), START_BOUND_S, "the client reaches a leaf")
        yield made


def wait_link(node: Path) -> str:
    """Return the link as soon as it names the directory of each node."""
    link = [""]

    def has_all() -> bool:
        link[0] = call("link", "--node", node).stdout.split("\n")[0]
        return link[0].count(",") == 2

    wait_until(has_all, START_BOUND_S, "the link names three directories", lambda: link[0])
    return link[0]


def is_reached(client: Client) -> bool:
    try:
        return bool(client.get())
    except (OSError, HTTPException):
        return False


def test_client_turns_to_next_leaf_after_kill(up: Up, client: Client) -> None:
    client.longest_s = 0.0
    before = Counter(client.get() for _ in range(REQUESTS))
    undisturbed_s, client.longest_s = client.longest_s, 0.0
    # When the node of the leaf that served the last request is killed,
    killed = max(before, key=before.__getitem__)
    [process] = [each for each in up.children() if killed in str(each.cmdline())]
    process.kill()
    up.wait_for(f"{killed} process-ended")
    after = Counter(client.get() for _ in range(REQUESTS))
    # then no request fails, none waits long, and the leaves received each request once.
    print(f"{before} before the kill of {killed}, {after} after it; the longest request took {client.longest_s:.2f} s")  # noqa: T201 - the figure of the test
    assert killed not in after
    assert client.longest_s < LONGEST_S + 10 * undisturbed_s
    for numbers in client.numbers.values():
        assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]
