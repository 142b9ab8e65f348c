"""One founded farm of whichever checkout this process runs in, for a parent that loads it.

    PYTHONPATH=TREE python identity_farm.py DIRECTORY        with TREE as the working directory

The farm's code is the tree's, and so is `benchmarks.farm`, which starts it: nothing here may need more than every tree
has. Prints one line when the farm has settled, and one for each line that it reads; ends with its standard input.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import trio

from benchmarks.farm import Farm, running_farm
from bridge.node.settings.choices import Timing


async def _serve(directory: Path) -> None:
    async with running_farm(directory, Timing.LAN) as farm:
        await _tell(farm)
        while await trio.to_thread.run_sync(sys.stdin.readline):
            await farm.settle()
            await _tell(farm)


async def _tell(farm: Farm) -> None:
    leader = await farm.leader()
    servers = {server.node.name: 0 if server.process is None else server.process.pid for server in farm.servers}
    document = {"target": asdict(farm.target()), "leader": leader.node.name, "servers": servers}
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    trio.run(_serve, Path(sys.argv[1]))
