"""Runs farms on virtual time: `python -m tests.simulation.farm --seed 7 --hours 1 --trace`."""

import argparse
import sys
import time

import trio

from tests.simulation.farm.world import World, simulate


def run(seed: int, nodes: int, hours: float) -> list[str]:
    """Run one farm; return its trace."""

    async def main() -> list[str]:
        async with World.open(seed, nodes) as world:
            await world.start_all()
            await trio.sleep(3600 * hours)
        return world.trace

    return simulate(seed, main)


def main() -> None:
    """Run the seed of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.farm", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hours", type=float, default=0.1, help="hours of virtual time")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--trace", action="store_true", help="print the trace")
    options = parser.parse_args()
    began_s = time.perf_counter()
    trace = run(options.seed, options.nodes, options.hours)
    spent_s = time.perf_counter() - began_s
    if options.trace:
        sys.stdout.write("".join(f"{line}\n" for line in trace))
    sys.stderr.write(
        f"seed {options.seed}: {options.hours:g} h of {options.nodes} nodes in {spent_s:.1f} s,"
        f" {3600 * options.hours / spent_s:.0f} virtual seconds per second\n"
    )


if __name__ == "__main__":
    main()
