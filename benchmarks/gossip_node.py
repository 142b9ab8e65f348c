"""One process with only a gossip node: `python -m benchmarks.gossip_node`.

It prints the changes that the node sees, one JSON object per line, and a summary for each line on standard input. It
ends when its standard input closes, so it does not outlive its parent.

    {"address": "127.0.0.1:40001", "node": "5f0c…"}            once, when it is ready
    {"at": 1234.5, "node": "91ab…", "status": "suspect"}       for each change; seconds of the system's monotonic clock
"""

import argparse
import json
import os
import sys
import time
from contextlib import AbstractAsyncContextManager

import trio
from msgspec.structs import replace

import gossip
from gossip import Address, Group, MembershipChanged, SwimOptions
from gossip.node import endpoint

BENCHMARK_KEY = b"a key that keeps nothing secret."
TIMINGS = {"lan": SwimOptions.lan, "loopback": SwimOptions.loopback}


def main() -> None:
    """Run a gossip node with the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gossip_node", description=__doc__)
    parser.add_argument("--seed", action="append", default=[], metavar="HOST:PORT", help="join through this node")
    parser.add_argument("--timing", choices=TIMINGS, default="lan")
    parser.add_argument("--capacity", type=int, default=64, help="maximum number of peers (64)")
    parser.add_argument("--directory-limit", type=int, default=1_024, help="maximum number of known members (1024)")
    parser.add_argument("--insecure", action="store_true", help="datagrams in clear")
    parser.add_argument("--quiet", action="store_true", help="do not print changes")
    options = parser.parse_args()
    tuning = replace(TIMINGS[options.timing](), directory_limit=options.directory_limit)
    opened = gossip.open_group(
        Address("127.0.0.1", 0),
        key=None if options.insecure else BENCHMARK_KEY,
        insecure=options.insecure,
        seeds=tuple(options.seed),
        capacity=options.capacity,
        options=tuning,
    )
    trio.run(_run, opened, options.quiet)


async def _run(opened: AbstractAsyncContextManager[Group], quiet: bool) -> None:  # noqa: FBT001 - trio.run passes by position
    async with opened as group, trio.open_nursery() as nursery:
        _write_line({"address": endpoint(group.info.address), "node": group.node_id.hex()})
        nursery.start_soon(_report_changes, group, quiet)
        async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as requests:
            async for _ in requests:
                _write_line(_summary(group))
        nursery.cancel_scope.cancel()


async def _report_changes(group: Group, quiet: bool) -> None:  # noqa: FBT001 - the same
    async for numbered in group.events():
        event = numbered.event
        if isinstance(event, MembershipChanged) and not quiet:
            _write_line({"at": time.monotonic(), "node": event.info.node_id.hex(), "status": event.status.name.lower()})


def _summary(group: Group) -> dict[str, object]:
    description = group.describe()
    return {
        "members": len(description.core.members),
        "peers": description.core.peer_count,
        "received": description.wire.received,
        "sent": description.wire.sent,
        "dropped": dict(description.wire.dropped),
        "processor_s": time.process_time(),
    }


def _write_line(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
