"""Three members of etcd from Debian's package, on loopback with TLS, for comparison with the bare group.

    debian_package.find_program ─▶ certificate ─▶ three members ─▶ leader by its JSON gateway
    build_client (Go, from etcd_client_go) ─▶ the client for loads; `benchmarks.steady` for failovers

Peers and clients use TLS with a certificate of the benchmark's authority; peers authenticate with it, clients do not.
fsync is on, the default. The base timeout equals the bare group's `lan`: 1,000 ms, heartbeats every 100 ms.

The client under load is written in Go, like etcd's own clients, and etcd is skipped without it. gRPC in Python uses so
much processor time per call that, on two processors, etcd reaches only half of its throughput. Single requests use
etcd's gateway from JSON over HTTP to gRPC, so the benchmark needs neither gRPC nor generated messages.
"""

import json
import os
import shutil
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import asdict
from http import HTTPStatus
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import trio

from benchmarks.child import Child, ChildError
from benchmarks.load import Load
from tests.node.certificates import Authority
from tests.processes import free_ports

MEMBERS = 3
ELECTION_TIMEOUT_MS = 1_000
HEARTBEAT_MS = 100
SETTLE_TIMEOUT_S = 60.0
POLL_S = 0.1
LOOPBACK = "127.0.0.1"
STATUS_TIMEOUT_S = 1.0
GO_SOURCE = Path(__file__).with_name("etcd_client_go")
GO_PROGRAM = Path(__file__).parents[1] / "build" / "etcd-client"
GO_PLACES = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/go/bin"])
"""PATH, and the directory of Go's own installer."""
BUILD_TIMEOUT_S = 600.0
REASON_CHARACTERS = 200


async def build_client() -> tuple[Path | None, str]:
    """Return the client in Go, built in the directory `build`; or None and the reason."""
    go = shutil.which("go", path=GO_PLACES)
    if go is None:
        return None, "Go is not installed"
    command = [go, "build", "-trimpath", "-buildvcs=false", "-o", str(GO_PROGRAM), "."]
    with trio.move_on_after(BUILD_TIMEOUT_S):
        # Only the installed toolchain builds it: a benchmark does not fetch another one.
        built = await trio.run_process(
            command,
            cwd=GO_SOURCE,
            env={**os.environ, "GOTOOLCHAIN": "local"},
            check=False,
            capture_stdout=True,
            capture_stderr=True,
        )
        if built.returncode == 0:
            return GO_PROGRAM, ""
        printed = " ".join(bytes(built.stderr).decode(errors="replace").split())
        return None, f"`go build` failed: {printed[-REASON_CHARACTERS:]}"
    return None, f"`go build` took longer than {BUILD_TIMEOUT_S:g} s"


async def version(program: str) -> str:
    """Return the first line of its version."""
    printed = await trio.run_process([program, "--version"], capture_stdout=True)
    return bytes(printed.stdout).decode().splitlines()[0]


class EtcdGroup:
    """The members, created by `running_etcd_group`."""

    def __init__(self, directory: Path, program: str, go_client: Path | None = None) -> None:
        self.directory = directory
        self._go_client = go_client
        self.servers: dict[int, Child] = {}
        self._program = program
        self._ports = free_ports(2 * MEMBERS)
        authority = Authority(directory)
        self._authority, self._certificate = authority.file, authority.certificate(LOOPBACK).path

    async def start(self, number: int) -> None:
        """Start a member, for the first time or again."""
        log = self.directory / f"{number}.log"
        self.servers[number] = await Child.start_foreign(f"etcd {number}", self._command(number), log)

    async def open(self) -> None:
        """Start all members and wait for a leader."""
        for number in range(MEMBERS):
            await self.start(number)
        await self.settle()

    async def settle(self) -> int:
        """Wait until all members reply and one leads; return its number."""
        with trio.move_on_after(SETTLE_TIMEOUT_S):
            while True:
                found = [await self._status(endpoint) for endpoint in self._endpoints()]
                leaders = [number for number, each in enumerate(found) if each and leads(each)]
                if all(found) and len(leaders) == 1:
                    return leaders[0]
                await trio.sleep(POLL_S)
        raise ChildError(f"etcd's members did not agree within {SETTLE_TIMEOUT_S:g} s; see {self.directory}/*.log")

    async def clients(self, load: Load | None, count: int) -> list[Child]:
        """Start client processes: in Go with a load, or with steady writes to all members."""
        leader, endpoints = await self.settle(), self._endpoints()
        document: dict[str, object] = {
            "endpoints": endpoints[leader:] + endpoints[:leader],
            "certificate": str(self._authority),
            "load": None if load is None else asdict(load),
        }
        steady = [sys.executable, "-m", "benchmarks.steady", json.dumps({"etcd": document})]
        command = steady if load is None else [str(self._go_client), json.dumps(document)]
        return [await Child.start("etcd's client", command, self.directory / "client.log") for _ in range(count)]

    async def _status(self, endpoint: str) -> dict[str, Any]:
        """Return the status of a member; empty if it does not reply."""
        try:
            return await trio.to_thread.run_sync(
                request, endpoint, "maintenance/status", {}, self._authority, STATUS_TIMEOUT_S
            )
        except (OSError, HTTPException):
            return {}

    async def close(self) -> None:
        """End every process."""
        for child in self.servers.values():
            await child.end()

    def _endpoints(self) -> list[str]:
        return [f"{LOOPBACK}:{port}" for port in self._ports[:MEMBERS]]

    def _command(self, number: int) -> list[str]:
        for_clients = f"https://{self._endpoints()[number]}"
        peers = [f"https://{LOOPBACK}:{port}" for port in self._ports[MEMBERS:]]
        authority, certificate = str(self._authority), str(self._certificate)
        return [
            self._program,
            *("--name", f"member{number}", "--data-dir", str(self.directory / str(number))),
            *("--listen-client-urls", for_clients, "--advertise-client-urls", for_clients),
            *("--listen-peer-urls", peers[number], "--initial-advertise-peer-urls", peers[number]),
            *("--initial-cluster", ",".join(f"member{each}={url}" for each, url in enumerate(peers))),
            *("--initial-cluster-state", "new", "--logger", "zap", "--log-level", "error"),
            *("--cert-file", certificate, "--key-file", certificate),
            *("--peer-cert-file", certificate, "--peer-key-file", certificate),
            *("--peer-trusted-ca-file", authority, "--peer-client-cert-auth"),
            f"--election-timeout={ELECTION_TIMEOUT_MS}",
            f"--heartbeat-interval={HEARTBEAT_MS}",
        ]


@asynccontextmanager
async def running_etcd_group(directory: Path, program: str, go_client: Path | None = None) -> AsyncIterator[EtcdGroup]:
    """Start a group in a new directory; its processes end with the block."""
    await trio.Path(directory).mkdir(mode=0o700, parents=True)
    group = EtcdGroup(directory, program, go_client)
    try:
        await group.open()
        yield group
    finally:
        await group.close()


def request(endpoint: str, method: str, body: dict[str, str], authority: Path, timeout_s: float) -> dict[str, Any]:
    """Return the reply of a member's gateway. Raises OSError or HTTPException; blocks."""
    trusted = ssl.create_default_context(cafile=authority)
    with closing(HTTPSConnection(endpoint, timeout=timeout_s, context=trusted)) as connection:
        connection.request("POST", f"/v3/{method}", json.dumps(body))
        response = connection.getresponse()
        document = dict(json.load(response))
    if response.status != HTTPStatus.OK:
        raise HTTPException(f"status {response.status}: {document}")
    return document


def leads(status: dict[str, Any]) -> bool:
    """Return True if a member's status names itself as the leader; it names "0" without a leader."""
    leader = status.get("leader", "0")
    return bool(leader != "0" and leader == status["header"]["member_id"])
