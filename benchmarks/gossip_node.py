"""One process with only a gossip node: `python -m benchmarks.gossip_node`.

It prints the changes that the node sees, one JSON object per line. It ends when its standard input closes, so it does
not outlive its parent.

    {"address": "127.0.0.1:40001", "node": "5f0c…"}            once, when it is ready
    {"at": 1234.5, "node": "91ab…", "status": "suspect"}       for each change; seconds of the system's monotonic clock
"""

import argparse
import json
import sys
import time

import trio

import gossip
from gossip import Address, MembershipChanged
from gossip.node import endpoint

BENCHMARK_KEY = b"a key that keeps nothing secret."


def main() -> None:
    """Run a gossip node with the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gossip_node", description=__doc__)
    parser.add_argument("--seed", action="append", default=[], metavar="HOST:PORT", help="join through this node")
    parser.add_argument("--insecure", action="store_true", help="datagrams in clear")
    parser.add_argument("--quiet", action="store_true", help="do not print changes")
    trio.run(_run, parser.parse_args())


async def _run(options: argparse.Namespace) -> None:
    opened = gossip.open_group(
        Address("127.0.0.1", 0),
        key=None if options.insecure else BENCHMARK_KEY,
        insecure=options.insecure,
        seeds=tuple(options.seed),
        capacity=64,
    )
    async with opened as group, trio.open_nursery() as nursery:
        _write_line({"address": endpoint(group.info.address), "node": group.node_id.hex()})
        if not options.quiet:
            nursery.start_soon(_report_changes, group)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


async def _report_changes(group: gossip.Group) -> None:
    async for numbered in group.events():
        event = numbered.event
        if isinstance(event, MembershipChanged):
            _write_line({"at": time.monotonic(), "node": event.info.node_id.hex(), "status": event.status.name.lower()})


def _write_line(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
