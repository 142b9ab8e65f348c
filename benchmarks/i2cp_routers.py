"""I2CP routers in one separate process, for an idle farm: `python -m benchmarks.i2cp_routers SPECIFICATION`.

    stdin: a line ─▶ stdout: number of structures that the routers have accepted so far

The process prints the port of each router first. The routers behave like Java I2P (`tests/simulation/farm/routers.py`),
without tunnels. The process ends when its standard input closes.
"""

import json
import sys
import time
from random import Random
from typing import Any

import trio

from tests.simulation.farm.routers import Floodfills, Router


async def _run(document: dict[str, Any]) -> None:
    floodfills = Floodfills(time.time)
    routers = [Router(floodfills, Random(), time.time, is_i2pd=False) for _ in range(document["routers"])]
    async with trio.open_nursery() as nursery:
        ports = []
        for router in routers:
            [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
            ports.append(listener.socket.getsockname()[1])
            nursery.start_soon(trio.serve_listeners, router.serve, [listener])
        print(json.dumps({"ports": ports}), flush=True)
        while await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            print(json.dumps({"structures": sum(len(each.structures) for each in routers)}), flush=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(_run, json.loads(sys.argv[1]))
