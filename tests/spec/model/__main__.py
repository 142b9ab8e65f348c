"""Explore the worlds of the model of consensus, or those whose names begin as given, and print the covered states."""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.spec.model.explorer import Exploration, explore
from tests.spec.model.worlds import FULL, SMALL, World


def main(arguments: list[str]) -> int:
    """Explore; return 1 if a claim is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.spec.model", description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of names of worlds (default: all)")
    parser.add_argument("--small", action="store_true", help="explore the small worlds of the tests")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    options = parser.parse_args(arguments)
    worlds = [
        world
        for world in (SMALL if options.small else FULL)
        if not options.names or any(world.name.startswith(name) for name in options.names)
    ]
    if not worlds:
        parser.error(f"no world begins with {' or '.join(options.names)}; there are {[world.name for world in FULL]}")
    broken = False
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for world, found in zip(worlds, pool.map(explore, worlds), strict=True):
            _show(world, found)
            broken |= found.broken is not None
    return int(broken)


def _show(world: World, found: Exploration) -> None:
    outcome = "complete" if found.broken is None else f"BROKEN: {found.broken}"
    sys.stdout.write(
        f"{world.name}: {found.states:,} states, {found.transitions:,} transitions, depth {found.depth}, "
        f"{found.seconds:,.0f} s of processor time, {outcome}\n"
    )
    for action in found.story:
        sys.stdout.write(f"  {action}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
