"""Programs and logs of the npm package for the tests: changes of the members, compaction, stored logs, restarts."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import trio

from benchmarks.child import Child, ChildError
from benchmarks.zmq_raft_group import IDENT, PACKAGES, READ_TIMEOUT_S, Member, ZmqRaftGroup, node

CHANGED = "Cluster joined configuration changed at index "


async def remove(group: ZmqRaftGroup, member: Member) -> None:
    await group.stop(member)
    del group.members[member.peer_id]


async def revive(group: ZmqRaftGroup) -> list[Member]:
    """Restart the members that exited, and record their last output."""
    dead = [member for member in group.members.values() if member.child is not None and not member.lives]
    for member in dead:
        member.deaths.append(member.last_output())
        await group.kill(member)
        await group.start_again(member)
    return dead


async def configure(group: ZmqRaftGroup, *arguments: str) -> int:
    """Run the package's `zr-config` until it prints the first index of the change; return the index.

    After that, `zr-config` waits for the entry that ends the change. If no entry follows this entry, `zr-config` never
    ends: with the last entries, the package's client ignores a callback's request to stop (`requestEntries`).
    """
    places = [url.removeprefix("tcp://") for url in group.urls]
    command = ["node", str(PACKAGES / "zmq-raft/bin/zr-config.js"), "-k", IDENT, "-t", "10000", *arguments, *places]
    program = await Child.start("zr-config", command, group.directory / "zr-config.log")
    try:
        while not (line := await program.receive_line(READ_TIMEOUT_S)).startswith(CHANGED):
            pass
    finally:
        program.kill()
        await program.end()
    return int(line.removeprefix(CHANGED).rstrip("."))


async def compact(member: Member, index: int) -> None:
    """Let a running server of the package replace its entries up to `index` by their payloads, one by one."""
    example = str(PACKAGES / "zmq-raft/example/passthrough_state.js")
    target = str(member.directory / "compact" / "snap.new")
    where = ("-d", str(member.directory), "-t", target, "-m", example, "-z", "0", "-U", "-N", "-i", str(index))
    await run_package_program("zr-log-compact.js", *where)


@dataclass(frozen=True, slots=True)
class PackageLog:
    """The stored log of a stopped server of the package: its snapshot, and the frames of the later entries."""

    snapshot_index: int
    snapshot_term: int
    snapshot: bytes
    entries: dict[int, bytes]


async def stored_package_log(directory: Path) -> PackageLog:
    """Read the log of a stopped server of the package, with the package's reader."""
    with trio.fail_after(READ_TIMEOUT_S):
        done = await trio.run_process(node("stored_log.js", str(directory)), capture_stdout=True)
    first, *rest = [json.loads(line) for line in bytes(done.stdout).splitlines()]
    snapshot = first["snapshot"]
    entries = {each["index"]: bytes.fromhex(each["entry"]) for each in rest}
    return PackageLog(snapshot["index"], snapshot["term"], bytes.fromhex(snapshot["bytes"]), entries)


async def run_package_program(name: str, *arguments: str) -> str:
    """Run a program of the package; raise `ChildError` with its output."""
    command = ["node", str(PACKAGES / "zmq-raft/bin" / name), *arguments]
    with trio.move_on_after(READ_TIMEOUT_S):
        done = await trio.run_process(command, capture_stdout=True, stderr=subprocess.STDOUT, check=False)
        output = bytes(done.stdout).decode(errors="replace")
        if done.returncode == 0:
            return output
        raise ChildError(f"{' '.join(command)} failed: {output}")
    raise ChildError(f"{' '.join(command)} took longer than {READ_TIMEOUT_S:g} s")
