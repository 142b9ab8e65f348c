"""Three servers of the bare consensus group in a directory: started, queried, killed and started again.

The kernel chooses their ports of loopback at the first start. After a restart they have the same ports and
certificates, so the other servers and the clients can connect.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from benchmarks.child import Child, ChildError
from benchmarks.client import ClusterTarget, ServerTarget
from benchmarks.consensus_node import CLUSTER, LISTENS, READY, USER

SERVERS = 3
SETTLE_TIMEOUT_S = 60.0
POLL_S = 0.05
PASSWORD = "of this benchmark only"  # noqa: S105 - it does not protect anything


class ConsensusGroup:
    """The group, created by `running_consensus_group`."""

    def __init__(self, directory: Path, *, whole_log: bool, instrument: str) -> None:
        self.directory = directory
        self._options = {"whole_log": whole_log, "instrument": instrument}
        self.servers: dict[int, Child] = {}
        self._announced: dict[int, dict[str, object]] = {}

    async def start_all(self) -> None:
        """Start every stopped server, and send each the addresses of all."""
        started = [number for number in range(1, SERVERS + 1) if number not in self.servers]
        for number in started:
            await self._start(number)
        for number in started:
            await self._introduce(number)

    async def restart(self, number: int) -> dict[str, object]:
        """Start a stopped server; return its announcement."""
        await self._start(number)
        await self._introduce(number)
        return self._announced[number]

    async def end(self, number: int) -> None:
        """Stop a server, or clean up a killed one."""
        await self.servers.pop(number).end()

    async def statuses(self) -> dict[int, dict[str, object]]:
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
                ServerTarget(number, LISTENS, int(str(announced["port"])), str(announced["fingerprint"]))
                for number, announced in sorted(self._announced.items())
            ),
        )

    async def _start(self, number: int) -> None:
        directory = self.directory / str(number)
        directory.mkdir(mode=0o700, exist_ok=True)
        announced = self._announced.get(number, {})
        specification = {
            "server_id": number,
            "servers": SERVERS,
            "directory": str(directory),
            "password": PASSWORD,
            "port": announced.get("port", 0),
        } | self._options
        log = self.directory / f"{number}.log"
        child = await Child.start_module(f"server {number}", "benchmarks.consensus_node", specification, log)
        self.servers[number] = child
        self._announced[number] = await child.receive_document()

    async def _introduce(self, number: int) -> None:
        child = self.servers[number]
        await child.send_line(_document(self._announced))
        if await child.receive_line() != READY:
            raise ChildError(f"{child.name} did not get ready")


@asynccontextmanager
async def running_consensus_group(
    directory: Path, *, whole_log: bool = False, instrument: str = ""
) -> AsyncIterator[ConsensusGroup]:
    """Start a group in a new directory; its processes end with the block. Options: see `Specification`."""
    await trio.Path(directory).mkdir(mode=0o700, parents=True)
    group = ConsensusGroup(directory, whole_log=whole_log, instrument=instrument)
    try:
        await group.start_all()
        await group.settle()
        yield group
    finally:
        for number in list(group.servers):
            await group.end(number)


def _document(announced: dict[int, dict[str, object]]) -> str:
    return json.dumps([announced[number] for number in sorted(announced)])
