"""Batches that a controller of Apache Kafka reads from its log, and batches that end the controller.

Every controller parses every record, also a standby controller. At the first unreadable record it logs "Encountered
fatal fault" and exits, and again after each start. Our voter may be the leader of Kafka's controllers. As their leader,
it may write only control records of version 0, and its clients may produce only records of the metadata.

Each test appends one batch to the log of a stopped controller, as a leader's Fetch response would have done.
"""

import struct
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import crc32c
import pytest
import trio

from benchmarks.child import ChildError
from tests.interop.kafka import tool_jvm
from tests.interop.kafka.jvm import POLL_S, JvmServers, KafkaServer, running_jvm_quorum
from tests.interop.kafka.tool_jvm import ToolJvm

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(tool_jvm.missing() is not None, reason=tool_jvm.missing() or "all is there"),
]

STORY_S: Final = 120.0
CONTROL: Final = 0x20
LEADER_CHANGE: Final = 2
UNKNOWN_CONTROL: Final = 9
NO_OP_RECORD: Final = bytes.fromhex("01140000")
"""Frame version 1, type 20, version 0, no tagged fields: the record that Kafka's active controller writes when idle."""
UNKNOWN_RECORD: Final = bytes.fromhex("01ff7f0000")


def varint(number: int) -> bytes:
    """Return a small number in Kafka's zigzag encoding."""
    zigzag = number * 2 if number >= 0 else -number * 2 - 1
    spelled = bytearray()
    while zigzag > 0x7F:
        spelled.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*spelled, zigzag])


def batch(
    offset: int, epoch: int, key: bytes | None, value: bytes, *, attributes: int = 0, later_ms: Iterable[int] = (0,)
) -> bytes:
    """Return a batch with one record for each time in `later_ms` (ms from now), without the product's writer."""
    now_ms, records = int(time.time() * 1000), b""
    spelled_key = varint(-1) if key is None else varint(len(key)) + key
    times = list(later_ms)
    for number, later in enumerate(times):
        record = bytes(1) + varint(later) + varint(number) + spelled_key + varint(len(value)) + value + varint(0)
        records += varint(len(record)) + record
    count = len(times)
    tail = struct.pack(">hiqqqhii", attributes, count - 1, now_ms, now_ms + max(times), -1, -1, -1, count) + records
    return struct.pack(">qiibI", offset, len(tail) + 9, epoch, 2, crc32c.crc32c(tail)) + tail


def leader_change(version: int, ids: Iterable[int]) -> bytes:
    """Return a LeaderChange with the votes of all voters; version 1 has directory ids."""
    voters = [struct.pack(">i", voter_id) + (uuid.uuid4().bytes if version else b"") + b"\x00" for voter_id in ids]
    spelled = bytes([len(voters) + 1]) + b"".join(voters)
    return struct.pack(">hi", version, 1) + spelled + spelled + b"\x00"


def control_key(version: int, kind: int) -> bytes:
    return struct.pack(">hh", version, kind)


ACCEPTED: Final[dict[str, tuple[bytes | None, bytes, int]]] = {
    "no-op record": (None, NO_OP_RECORD, 0),
    "leader change of version 0": (control_key(0, LEADER_CHANGE), leader_change(0, [1]), CONTROL),
}
REFUSED: Final[dict[str, tuple[bytes | None, bytes, int]]] = {
    "leader change of version 1": (control_key(1, LEADER_CHANGE), leader_change(1, [1]), CONTROL),
    "unknown control record": (control_key(0, UNKNOWN_CONTROL), b"x", CONTROL),
    "unknown metadata record": (None, UNKNOWN_RECORD, 0),
    "record with a key": (b"key", NO_OP_RECORD, 0),
    "empty value": (None, b"", 0),
    "text": (None, b"text", 0),
}


async def append(
    quorum: JvmServers,
    server: KafkaServer,
    epoch: int,
    written: tuple[bytes | None, bytes, int],
    later_ms: Iterable[int] = (0,),
) -> None:
    """Kill a controller, and append one batch to its log."""
    await quorum.kill(server)
    log = server.metadata_directory / f"{0:020}.log"
    key, value, attributes = written
    offset = await end_offset(await quorum.tools(), log)
    with log.open("ab") as file:
        file.write(batch(offset, epoch, key, value, attributes=attributes, later_ms=later_ms))


async def wait_until_ended(quorum: JvmServers, server: KafkaServer) -> None:
    """Start a controller, and wait until a record has ended it; it may listen briefly before."""
    with suppress(ChildError):
        await quorum.start(server)
    while server.lives:  # noqa: ASYNC110 - the end of another process does not wake a task
        await trio.sleep(POLL_S)
    assert any("fatal fault" in line for line in server.complaints())


async def end_offset(tools: ToolJvm, log: Path) -> int:
    """Return the offset after the last batch, from Kafka's reader."""
    printed = await tools.do("dump", arguments=["--files", str(log)])
    return 1 + max(
        int(line.split("lastOffset: ")[1].split()[0]) for line in printed.splitlines() if "lastOffset" in line
    )


@pytest.mark.parametrize("written", ACCEPTED.values(), ids=ACCEPTED.keys())
async def test_controller_accepts_batch(tmp_path: Path, written: tuple[bytes | None, bytes, int]) -> None:
    with trio.fail_after(STORY_S):
        async with running_jvm_quorum(tmp_path, 1) as quorum:
            _, epoch = await quorum.leader()
            await append(quorum, quorum.servers[1], epoch, written)
            await quorum.start(quorum.servers[1])
            assert (await quorum.leader(epoch_above=epoch))[0] == 1


@pytest.mark.parametrize("written", REFUSED.values(), ids=REFUSED.keys())
async def test_controller_exits_at_batch(tmp_path: Path, written: tuple[bytes | None, bytes, int]) -> None:
    with trio.fail_after(STORY_S):
        async with running_jvm_quorum(tmp_path, 1) as quorum:
            server = quorum.servers[1]
            _, epoch = await quorum.leader()
            await append(quorum, server, epoch, written)
            await wait_until_ended(quorum, server)


@pytest.mark.parametrize("later_ms", [(0, 0), (0, 1)], ids=["of one time", "of two times"])
async def test_records_of_batch_must_have_same_time(tmp_path: Path, later_ms: tuple[int, ...]) -> None:
    """A controller exits at a batch with different times, so our leader must refuse such a batch of a client."""
    with trio.fail_after(STORY_S):
        async with running_jvm_quorum(tmp_path, 1) as quorum:
            server = quorum.servers[1]
            _, epoch = await quorum.leader()
            await append(quorum, server, epoch, (None, NO_OP_RECORD, 0), later_ms)
            if later_ms == (0, 0):
                await quorum.start(server)
                assert (await quorum.leader(epoch_above=epoch))[0] == 1
            else:
                await wait_until_ended(quorum, server)
