"""The servers of the bare consensus group in a directory: started, queried, killed and started again.

At the first start, the kernel chooses their ports on loopback. After a restart they have the same ports and
certificates, so the other servers and the clients can connect.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from benchmarks import client
from benchmarks.child import Child, ChildError
from benchmarks.client import ClusterTarget, ServerTarget
from benchmarks.consensus_node import CLUSTER, LISTENS, USER
from benchmarks.load import Load

SERVERS = 3
SETTLE_TIMEOUT_S = 120.0
POLL_S = 0.05
PASSWORD = "of this benchmark only"  # noqa: S105 - it does not protect anything


class ConsensusGroup:
    """The group, created by `running_consensus_group`."""

    def __init__(self, directory: Path, processes: Mapping[int, Mapping[str, Any]]) -> None:
        self.directory = directory
        self._processes = processes
        self.servers: dict[int, Child] = {}
        """The processes, by the id of their first server."""
        self._announced: dict[int, list[dict[str, Any]]] = {}

    async def start_all(self) -> None:
        """Start all servers, and send each the addresses of all."""
        for number in self._processes:
            await self._start(number)
        for number in self.servers:
            await self._introduce(number)

    async def start(self, number: int) -> None:
        """Start a stopped server."""
        await self._start(number)
        await self._introduce(number)

    async def clients(self, load: Load | None, count: int) -> list[Child]:
        """Start client processes with a load, or with steady writes."""
        await self.settle()
        return [await client.start(self.target(), load, self.directory / "client.log") for _ in range(count)]

    async def statuses(self) -> dict[int, dict[str, Any]]:
        """Return the status reported by each running server."""
        return {number: await child.request("status") for number, child in self.servers.items()}

    async def settle(self) -> int:
        """Wait until all follow one leader and have its entries; return the leader's number."""
        with trio.move_on_after(SETTLE_TIMEOUT_S):
            while True:
                found = await self.statuses()
                leaders = [number for number, status in found.items() if status["leads"]]
                agreed = {(status["leader"], status["last"]) for status in found.values()}
                if len(leaders) == 1 and len(agreed) == 1:
                    return leaders[0]
                await trio.sleep(POLL_S)
        raise ChildError(f"the servers did not agree within {SETTLE_TIMEOUT_S:g} s; see {self.directory}/*.log")

    def target(self) -> ClusterTarget:
        """Return the data that a client needs."""
        return ClusterTarget(
            CLUSTER,
            USER,
            PASSWORD,
            tuple(
                ServerTarget(each["server_id"], LISTENS, each["port"], each["fingerprint"])
                for each in self._all_announced()
            ),
        )

    async def _start(self, number: int) -> None:
        directory = self.directory / str(number)
        directory.mkdir(mode=0o700, exist_ok=True)
        specification = {
            "server_id": number,
            "directory": str(directory),
            "password": PASSWORD,
            "port": self._announced[number][0]["port"] if number in self._announced else 0,
            **self._processes[number],
        }
        log = self.directory / f"{number}.log"
        child = await Child.start_module(f"server {number}", "benchmarks.consensus_node", specification, log)
        self.servers[number] = child
        hosted = self._processes[number].get("hosted", 1)
        self._announced[number] = [await child.receive_document(SETTLE_TIMEOUT_S) for _ in range(hosted)]

    async def _introduce(self, number: int) -> None:
        child = self.servers[number]
        await child.send_line(json.dumps(self._all_announced()))
        await child.wait_ready(SETTLE_TIMEOUT_S)

    def _all_announced(self) -> list[dict[str, Any]]:
        return [each for _, announced in sorted(self._announced.items()) for each in announced]


@asynccontextmanager
async def running_consensus_group(
    directory: Path, processes: Mapping[int, Mapping[str, Any]] | None = None, *, instrument: str = ""
) -> AsyncIterator[ConsensusGroup]:
    """Start a group in a new directory; its processes end with the block.

    `processes`: fields of the `Specification` of each process, by the id of its first server. Without them, three
    processes have a server each, with this `instrument`.
    """
    await trio.Path(directory).mkdir(mode=0o700, parents=True)
    three = {number: {"servers": SERVERS, "instrument": instrument} for number in range(1, SERVERS + 1)}
    group = ConsensusGroup(directory, processes or three)
    try:
        await group.start_all()
        await group.settle()
        yield group
    finally:
        for child in group.servers.values():
            await child.end()
