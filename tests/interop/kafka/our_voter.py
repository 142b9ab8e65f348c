"""Our voter or observer as a separate process, which a story can kill.

    python -m tests.interop.kafka.our_voter server.properties
    python -m tests.interop.kafka.our_voter server.properties __raft_performance_test 2      with Kafka's test servers

    standard output   {"port": 9093, "directory": "…"} when it serves, then one document per line of standard input
    status            role, epoch, leader, commit index, start and end of the log, voters
    log 0             the committed records from an offset on, 5,000 at most: [offset, epoch, time, key, value, type]
    snapshot          takes a snapshot; returns its offset
    resign            makes a leader hand over

It exits when its standard input ends, and with an error if its epoch or commit index ever goes back.
"""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec
import trio

from consensus.core.effects import Role
from consensus.core.model import ReplicaKey
from consensus.protocols.kafka import ConsumerService, ProduceService, uuid_text
from consensus.protocols.kafka.wire.limits import Topic
from consensus.protocols.kafka.wire.record_batches import read_batches
from consensus.protocols.kraft import KraftVoter, VoterOptions, open_voter, parse_properties, voter_settings
from consensus.protocols.kraft.wire.entries import batches_of
from consensus.protocols.kraft.wire.replica_names import replica

MAX_ENTRIES: Final = 5_000
MAX_BYTES: Final = 16 * 1024 * 1024
PIECE_BYTES: Final = 65_536
WATCH_S: Final = 0.02
Row = tuple[int, int, int, str | None, str | None, int | None]
"""Offset, epoch, time in ms, key, value, and for a control record its type."""


def rows(data: bytes) -> list[Row]:
    """Return the records of complete batches."""
    return [
        (
            offset,
            batch.leader_epoch,
            record.timestamp_ms,
            None if record.key is None else record.key.hex(),
            None if record.value is None else record.value.hex(),
            int.from_bytes((record.key or b"")[2:4]) if batch.is_control else None,
        )
        for batch in read_batches(data)
        for offset, record in enumerate(batch.records, batch.base_offset)
    ]


def status(voter: KraftVoter) -> dict[str, Any]:
    raft, role = voter.server.describe().raft, voter.server.role
    snapshot = raft.snapshot
    return {
        "role": role.role.value,
        "epoch": role.term,
        "leader": role.leader.id if isinstance(role.leader, ReplicaKey) else None,
        "committed": voter.server.commit_index,
        "start": raft.log_start.index,
        "end": raft.last.index,
        "snapshot": None if snapshot is None else snapshot.last.index,
        "followers": {replica(each.server_id).id: each.match for each in raft.followers},
        "voters": sorted(key.id for key in raft.configuration.voter_ids if isinstance(key, ReplicaKey)),
        "counters": voter.counters,
        "dropped": dict(raft.dropped),
        "error": voter.transport.last_error,
    }


async def log(voter: KraftVoter, offset: int) -> list[Row]:
    first = max(offset, voter.server.describe().raft.log_start.index) + 1
    entries = await voter.server.read(first, MAX_ENTRIES, MAX_BYTES)
    return rows(batches_of(first, entries))


async def answer(voter: KraftVoter, question: str) -> dict[str, Any]:
    command, _, argument = question.partition(" ")
    if command == "status":
        return status(voter)
    if command == "log":
        return {"records": await log(voter, int(argument))}
    if command == "snapshot":
        taken = await voter.server.take_snapshot()
        return {"snapshot": None if taken is None else taken.last.index}
    if command == "resign":
        await voter.resign()
        return {"resigned": voter.server.role.role is not Role.LEADER}
    return {"error": f"no command {command}"}


async def lines() -> AsyncIterator[str]:
    """Yield the lines of standard input until it ends."""
    received = bytearray()
    async with trio.lowlevel.FdStream(sys.stdin.fileno()) as stream:
        async for data in stream:
            received += data
            while b"\n" in received:
                line, _, rest = received.partition(b"\n")
                received = bytearray(rest)
                yield line.decode().strip()


async def watch(voter: KraftVoter) -> None:
    """Check that the commit index and the epoch never go back."""
    committed, epoch = 0, 0
    while True:
        now = voter.server.commit_index, voter.server.role.term
        if now[0] < committed or now[1] < epoch:
            raise AssertionError(f"committed {committed} and epoch {epoch} became {now}")
        committed, epoch = now
        await trio.sleep(WATCH_S)


def say(document: dict[str, Any]) -> None:
    """Write one line to standard output."""
    sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
    sys.stdout.buffer.flush()


async def main(properties: Path, topic: Topic | None) -> None:
    """Serve until standard input ends. Without a topic, the log is the metadata of Kafka's controllers."""
    settings = voter_settings(parse_properties(await trio.Path(properties).read_text(encoding="utf-8")))
    options = VoterOptions(
        is_metadata=topic is None,
        topic=topic or Topic(),
        services=lambda topic: (ConsumerService(topic, describes_cluster=False), ProduceService(topic)),
    )
    async with open_voter(settings, options) as voter, trio.open_nursery() as nursery:
        nursery.start_soon(watch, voter)
        say({"port": voter.listener.port, "directory": uuid_text(voter.key.directory) if voter.key.directory else None})
        async for line in lines():
            say(await answer(voter, line))
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    called = Topic(sys.argv[2], UUID(int=int(sys.argv[3]))) if len(sys.argv) > 2 else None
    trio.run(main, Path(sys.argv[1]), called)
