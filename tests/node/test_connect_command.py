"""`garlicfarm connect` as a process: its ports, its socket, its status and the streams of ssh, at a loopback bridge."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from bridge.cli.connect.client_socket import ClientSocketError, serve_socket, tunnel
from bridge.cli.connect.links import LINKS_MAX, LinkLine, LinksError, checked_links, parse_links
from bridge.cli.main import cli
from bridge.connect import ClientCounter
from bridge.connect.forwarding import ListenerCount
from bridge.node.security.control_socket import listen
from bridge.wire.i2p.farm_link import FarmLink
from gossip import Address
from tests.effort import each_case
from tests.end_to_end import forking
from tests.end_to_end.settings import free_port
from tests.node.wall_clock_farm import HELLO, LEAVES, WallClockFarm, wall_clock_farm
from tests.processes import END_S

BOUND_S = 120.0
LOOPBACK = "127.0.0.1"
LINK = f"garlicfarm:{'a' * 52}?at={'b' * 51}a"
OTHER_LINK = f"garlicfarm:{'c' * 51}a?at={'b' * 51}a"
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
AUDITED = """
import ipaddress, sys
log = open(sys.argv.pop(1), "a", buffering=1)
def hook(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        print("connect", *arguments[1][:2], file=log)
    elif event == "socket.getaddrinfo":
        ipaddress.ip_address(arguments[0])  # A name would need a look-up: the call fails.
sys.addaudithook(hook)
from bridge.cli.main import main
main()
"""
"""Runs a command, and records each TCP connection of the process, including its libraries."""


@dataclass(frozen=True, slots=True)
class RunningClient:
    """A running client."""

    process: "subprocess.Popen[bytes] | forking.Forked"
    socket: Path
    lines: list[str]

    async def connect(self, *arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[str]":
        """Run another `garlicfarm connect` of this user."""
        return await run_connect("--socket", str(self.socket), *arguments, stdin=stdin)

    async def call(self, *arguments: str) -> Result:
        """Run `garlicfarm connect` with the client's socket in this process."""
        words = ["connect", "--socket", str(self.socket), *arguments]
        return await trio.to_thread.run_sync(CliRunner().invoke, cli, words)


async def run_connect(*arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[str]":
    """Run `garlicfarm connect` until it ends."""
    return await trio.to_thread.run_sync(partial(forking.run, ["connect", *arguments], BOUND_S, given=stdin))


def started(command: list[str], program: Sequence[str], output: int) -> "subprocess.Popen[bytes] | forking.Forked":
    if program:
        return subprocess.Popen([*program, *command], stdout=output, stderr=output)
    return forking.start(command, output, output)


@asynccontextmanager
async def client_of(
    farm: WallClockFarm, directory: Path, *arguments: str, program: Sequence[str] = ()
) -> AsyncIterator[RunningClient]:
    """Run a client of a ready farm until the block ends; SIGTERM must end it with 0.

    `program` is the start of a command line that runs the client; otherwise it is forked.
    """
    own_socket, lines, ready = directory / "run" / "connect.sock", list[str](), trio.Event()
    places = ["--sam", str(farm.bridge), "--socket", str(own_socket), "--cache", str(directory / "cache")]
    output, writing = os.pipe()

    async def read() -> None:
        text = ""
        async for part in parts:
            text += part.decode()
            lines[:] = text.splitlines()
            if "ready, with" in text:
                ready.set()
        ready.set()

    with trio.fail_after(BOUND_S):
        async with trio.lowlevel.FdStream(output) as parts:
            try:
                process = started(["connect", *places, *arguments], program, writing)
            finally:
                os.close(writing)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(read)
                    await ready.wait()
                    assert process.poll() is None, lines
                    yield RunningClient(process, own_socket, lines)
                    process.send_signal(signal.SIGTERM)
                assert await trio.to_thread.run_sync(process.wait, END_S) == 0, lines
            finally:
                process.kill()
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(process.wait, END_S)


async def exchange(port: int, request: bytes) -> bytes:
    """Send a request to a port; return the beginning of the reply."""
    async with await trio.open_tcp_stream(LOOPBACK, port) as stream:
        await stream.send_all(request)
        received = b""
        while len(received) < len(HELLO) and (part := await stream.receive_some(4096)):
            received += part
        return received


# -- a running client --------------------------------------------------------------------------------------------------


async def test_ports_and_names_lead_to_farms(tmp_path: Path) -> None:
    port, proxy = free_port(socket.SOCK_STREAM), free_port(socket.SOCK_STREAM)
    async with wall_clock_farm() as farm:
        links = tmp_path / "connect.links"
        links.write_text(f"# our shop\n\n{farm.link} name=shop listen={LOOPBACK}:{port}\n")
        async with client_of(farm, tmp_path, "--links", str(links), "--http", f"{LOOPBACK}:{proxy}") as client:
            assert await exchange(port, REQUEST) == HELLO
            assert await exchange(proxy, REQUEST) == HELLO
            assert await exchange(proxy, b"GET http://shop/ HTTP/1.1\r\nHost: shop\r\n\r\n") == HELLO
            refused = await exchange(proxy, b"CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert refused.startswith(b"HTTP/1.1 403 ")
            assert client.lines[:2] == [
                f"{LOOPBACK}:{port} leads to shop",
                f"{LOOPBACK}:{proxy} is an HTTP proxy for shop",
            ]
            assert client.lines[-1] == f"shop: ready, with {LEAVES} leaves"


async def test_status_has_farm_leaves_and_counters(tmp_path: Path) -> None:
    port = free_port(socket.SOCK_STREAM)
    async with (
        wall_clock_farm() as farm,
        client_of(farm, tmp_path, str(farm.link), "--listen", f"{LOOPBACK}:{port}") as client,
    ):
        assert await exchange(port, REQUEST) == HELLO
        shown = (await client.call("--status")).stdout
        for expected in (f"{farm.link.address}\n", ": ready\n", "sessions ", "good", f"{LOOPBACK}:{port} leads to"):
            assert expected in shown
        document = json.loads((await client.call("--status", "--json")).stdout)
        assert document["counters"] | {"connections": 1, "connections_failed": 0} == document["counters"]
        (link,) = document["links"]
        assert link["farm"]["counters"]["streams_opened"] == 1
        assert len(link["farm"]["leaves"]) == LEAVES
        assert stat.S_IMODE(client.socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(client.socket.parent.stat().st_mode) == 0o700
        metrics = await metrics_at(client.socket)
        assert 'garlicfarm_connect_ready{link="1"} 1.0' in metrics
        for each in ListenerCount:
            assert f"garlicfarm_connect_{each.value}_total " in metrics
        for count in ClientCounter:
            assert f'garlicfarm_connect_{count.value}_total{{link="1"}} ' in metrics
        assert farm.link.address[:20] not in metrics


FOREIGN_MODULES = (
    "bridge.api.view",
    "bridge.api.words",
    "bridge.core.log.records",
    "bridge.core.state",
    "bridge.node.settings",
    "consensus.core.status",
    "consensus.net.tls",
    "cryptography.x509",
)
"""Prefixes of modules that a client does not need, and that load slowly."""


async def metrics_at(path: Path) -> str:
    """Return the metrics, as a scraper reads them."""
    async with await trio.open_unix_socket(path) as stream:
        await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: client\r\nConnection: close\r\n\r\n")
        return b"".join([bytes(part) async for part in stream]).decode()


def test_client_starts_without_modules_of_a_node() -> None:
    program = "import sys, bridge.cli.connect.command; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = [name for name in result.stdout.split() if name.startswith(FOREIGN_MODULES)]
    assert loaded == []


async def test_client_connects_only_to_its_bridge(tmp_path: Path) -> None:
    proxy, log = free_port(socket.SOCK_STREAM), tmp_path / "connections"
    audited = (sys.executable, "-c", AUDITED, str(log))
    async with (
        wall_clock_farm() as farm,
        client_of(farm, tmp_path, str(farm.link), "--http", f"{LOOPBACK}:{proxy}", program=audited) as client,
    ):
        assert await exchange(proxy, REQUEST) == HELLO
        for target in (b"CONNECT example.com:443", b"GET http://example.com/", b"CONNECT 192.0.2.1:80"):
            refused = await exchange(proxy, target + b" HTTP/1.1\r\nHost: example.com\r\n\r\n")
            assert refused.startswith(b"HTTP/1.1 403 ")
        assert set(log.read_text().splitlines()) == {f"connect {farm.bridge.host} {farm.bridge.port}"}
        assert client.process.poll() is None


async def test_standard_streams_use_running_client(tmp_path: Path) -> None:
    async with wall_clock_farm(serve_line) as farm, client_of(farm, tmp_path, str(farm.link)) as client:
        # Without a bridge a session is impossible: the bytes pass through the running client.
        done = await client.connect("--stdio", str(farm.link), "--sam", f"{LOOPBACK}:1", stdin=b"question\n")
        assert (done.stdout, done.returncode) == ("reply to question\n", 0)
        document = json.loads((await client.call("--status", "--json")).stdout)
        assert document["counters"]["tunnels"] == 1


async def serve_line(stream: trio.SocketStream) -> None:
    await stream.send_all(b"reply to " + await stream.receive_some(100))


async def test_broken_leaf_fails_standard_streams_with_reason(tmp_path: Path) -> None:
    async def silent(stream: trio.SocketStream) -> None:
        while await stream.receive_some():
            pass

    async with wall_clock_farm(silent) as farm:
        async with client_of(farm, tmp_path, str(farm.link), "--patience", "0.5") as client:
            done = await client.connect("--stdio", str(farm.link), stdin=b"question\n")
        assert (done.stdout, done.returncode) == ("", 1)
        assert "did not reply within 0.5 s" in done.stderr


async def test_running_client_of_older_version_is_reported(tmp_path: Path, nursery: trio.Nursery) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 Connection established\r\n\r\n")

    with trio.fail_after(BOUND_S):
        await nursery.start(serve_socket, tmp_path / "run" / "socket", serve)
        with pytest.raises(ClientSocketError, match="the running client has another version: restart it"):
            async with tunnel(tmp_path / "run" / "socket", f"{'a' * 52}.b32.i2p"):
                pass


async def test_standard_streams_open_own_session(tmp_path: Path) -> None:
    with trio.fail_after(BOUND_S):
        async with wall_clock_farm(serve_line) as farm:
            places = ["--sam", str(farm.bridge), "--socket", str(tmp_path / "none"), "--cache", str(tmp_path)]
            done = await run_connect("--stdio", str(farm.link), *places, stdin=b"question\n")
        assert (done.stdout, done.stderr, done.returncode) == ("reply to question\n", "", 0)


async def test_standard_streams_without_bridge_end_with_reason(tmp_path: Path) -> None:
    with trio.fail_after(BOUND_S):
        places = ["--sam", f"{LOOPBACK}:1", "--socket", str(tmp_path / "none"), "--cache", str(tmp_path)]
        done = await run_connect("--stdio", LINK, *places)
    assert (done.stdout, done.returncode) == ("", 1)
    assert "enable SAM in the router" in done.stderr


async def test_second_client_on_socket_is_refused(tmp_path: Path) -> None:
    async with wall_clock_farm() as farm, client_of(farm, tmp_path, str(farm.link)) as client:
        done = await client.connect(str(farm.link))
        assert done.returncode == 1
        assert "a client runs already" in done.stderr
        assert client.socket.is_socket()


async def test_stale_socket_is_replaced_and_removed_at_end(tmp_path: Path) -> None:
    path = tmp_path / "run" / "connect.sock"
    path.parent.mkdir(mode=0o700)
    listen(path)[0].close()
    async with wall_clock_farm() as farm, client_of(farm, tmp_path, str(farm.link)) as client:
        assert (await client.call("--status")).exit_code == 0
    assert not path.exists()


# -- refused options and links -----------------------------------------------------------------------------------------


@each_case(
    ("arguments", "reason"),
    [
        ([], "name a LINK"),
        ([LINK], "add --listen, --http, --stdio or --socket"),
        ([LINK, OTHER_LINK, "--listen", "127.0.0.1:8080"], "--listen goes with a single LINK"),
        ([LINK, OTHER_LINK, "--stdio"], "--stdio goes with a single LINK"),
        ([LINK, "--stdio", "--http", "127.0.0.1:8118"], "--stdio goes with a single LINK"),
        ([LINK, "--listen", "localhost:8080"], "'localhost' is not a numeric address"),
        ([LINK, "--http", "127.0.0.1"], "expected HOST:PORT"),
        ([LINK, "--sam", "router:7656"], "'router' is not a numeric address"),
        ([LINK, "--patience", "0"], "0.1"),
        ([LINK, "--json"], "--json goes with --status"),
        ([LINK, "--status"], "--status takes only"),
    ],
)
def test_contradicting_options_are_refused(arguments: list[str], reason: str) -> None:
    result = CliRunner().invoke(cli, ["connect", *arguments])
    assert result.exit_code == 2
    assert reason in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["garlicfarm:x", "--stdio"], "garlicfarm:ADDRESS?at="),
        ([LINK, LINK, "--http", "127.0.0.1:8118"], "two links have the address"),
        (["--status", "--socket", "/nonexistent/sock"], "no client replies at /nonexistent/sock"),
        (["--links", "/nonexistent/links"], "/nonexistent/links"),
    ],
)
def test_unusable_link_or_client_is_reported(arguments: list[str], reason: str) -> None:
    result = CliRunner().invoke(cli, ["connect", *arguments])
    assert result.exit_code == 1
    assert reason in " ".join(result.output.split())


def test_socket_in_shared_directory_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    result = CliRunner().invoke(cli, ["connect", LINK, "--socket", str(shared / "sock"), "--cache", str(tmp_path)])
    assert result.exit_code == 1
    assert "other users can change it" in result.output


def test_links_file_has_names_and_ports() -> None:
    first, second = parse_links(f"# two farms\n\n{LINK} name=shop listen=[::1]:8080\n {OTHER_LINK}\n", "file")
    assert (str(first.link), first.name, first.listen) == (LINK, "shop", Address("::1", 8080))
    assert (str(second.link), second.name, second.listen) == (OTHER_LINK, None, None)


@each_case(
    ("line", "reason"),
    [
        ("http://example.com/", "is not the link of a farm"),
        (f"{LINK} name=localhost", "is not a name for a link"),
        (f"{LINK} name=Shop", "is not a name for a link"),
        (f"{LINK} name={'a' * 52}.b32.i2p", "is not a name for a link"),
        (f"{LINK} name=127.0.0.1", "is not a name for a link"),
        (f"{LINK} listen=shop:80", "is not a numeric address"),
        (f"{LINK} port=80", "is neither name=NAME nor listen=HOST:PORT"),
    ],
)
def test_faulty_line_is_reported_with_its_number(line: str, reason: str) -> None:
    with pytest.raises(LinksError, match=f"line 2 of the file: .*{reason}"):
        parse_links(f"# a comment\n{line}\n", "the file")


def test_links_of_one_client_are_bounded() -> None:
    lines = [LinkLine(FarmLink(bytes([number]) * 32, (bytes(32),))) for number in range(LINKS_MAX + 1)]
    assert len(checked_links(lines[:-1])) == LINKS_MAX
    with pytest.raises(LinksError, match="two sessions in the router"):
        checked_links(lines)


@pytest.mark.parametrize("options", [{"name": "shop"}, {"listen": Address(LOOPBACK, 8080)}])
def test_repeated_name_or_port_is_refused(options: dict[str, Any]) -> None:
    lines = [LinkLine(FarmLink(bytes([number]) * 32, (bytes(32),)), **options) for number in range(2)]
    with pytest.raises(LinksError, match=r"two links have the (name shop|port 127.0.0.1:8080): remove one"):
        checked_links(lines)


def test_empty_links_file_is_refused() -> None:
    with pytest.raises(LinksError, match="does not have a link"):
        parse_links("# nothing\n", "the file")
