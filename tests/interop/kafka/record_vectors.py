"""Records tests/vectors/kraft.json: frames between Apache Kafka's servers and clients, and files on disk.

    python -m tests.interop.kafka.record_vectors        (`make interop-kafka` downloads the jars)

Three stories on loopback, each with a proxy in front of every server. A static and a dynamic quorum: election,
replication, a snapshot fetched by a follower without a log, the leader killed and another leader stopped. In the
dynamic quorum a fourth controller is also added as a voter and removed. The third story is a single broker that three
stock clients read, alone and as a group.

For each API and version, a few exchanges of different lengths are stored. An exchange is a request and its response,
each without the four bytes of its length. Bytes are hexadecimal.
"""

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import trio

from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey
from consensus.protocols.kafka.wire.codec import decode_response
from tests.interop.kafka.jvm import (
    OFTEN_SNAPSHOTS,
    JvmServers,
    KafkaServer,
    running_jvm_quorum,
    running_jvm_servers,
    wait_for_snapshot,
)
from tests.interop.kafka.recording import LOOPBACK, RecordedFrame, Recorder
from tests.interop.kafka.stock_consumers import read_with_kafka_python, read_with_librdkafka

VECTORS: Final = Path(__file__).parents[2] / "vectors" / "kraft.json"
TOPIC: Final = "farm"
VALUES: Final = 20
CORRELATION_ID_BYTES: Final = 4
KEPT_EXCHANGES: Final = 6
KEPT_FETCHES: Final = 16
MAX_FRAME_BYTES: Final = 6_000
MAX_FILE_BYTES: Final = 4_000
SETTLE_S: Final = 4.0
COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
STORED: Final = frozenset({".log", ".checkpoint", ".properties", ""})
ABOUT: Final = (
    "Recorded on loopback from Apache Kafka 4.1.2 (controllers, a broker, kafka-metadata-quorum, the Java consumer and "
    "producer), librdkafka 2.16.0 and kafka-python 3.0.12. Requests and responses without the 4 bytes of length before "
    "each, and files of a controller's directory, as hex."
)


async def quorum_story(directory: Path, recorder: Recorder, *, is_dynamic: bool) -> dict[str, str]:
    """Run elections, replication and a snapshot; in a dynamic quorum also add and remove a voter. Return some files."""
    async with running_jvm_quorum(
        directory, is_dynamic=is_dynamic, settings=OFTEN_SNAPSHOTS, recorder=recorder
    ) as quorum:
        leader_id, epoch = await quorum.leader()
        leader = quorum.servers[leader_id]
        follower = next(server for server in quorum.servers.values() if server is not leader)
        tools = await quorum.tools()
        addresses = [server.address for server in quorum.servers.values()]
        await tools.do("alter-configs", count=3, properties={"bootstrap.controllers": ",".join(addresses)})
        await tools.status(*addresses)
        await quorum.kill(follower)
        # The leader writes a record each 500 ms automatically; soon these suffice for a snapshot.
        await wait_for_snapshot(leader)
        for file in follower.metadata_directory.iterdir():
            file.unlink()
        await quorum.start(follower)
        await trio.sleep(SETTLE_S)
        if is_dynamic:
            await change_voters(quorum)
        files = dict(stored_files(leader))
        await quorum.kill(leader)
        second_id, epoch = await quorum.leader(epoch_above=epoch)
        await quorum.start(leader)
        await trio.sleep(SETTLE_S)
        await quorum.stop(quorum.servers[second_id])
        await quorum.leader(epoch_above=epoch)
        await tools.replication(*(server.address for server in quorum.servers.values() if server.lives))
        return files


async def change_voters(quorum: JvmServers) -> None:
    """Start a fourth controller as an observer, make it a voter, and remove it."""
    voters = [server.voter for server in quorum.servers.values()]
    properties = {"bootstrap.controllers": ",".join(voter.address for voter in voters)}
    fourth = await quorum.add(4, OFTEN_SNAPSHOTS)
    await quorum.format_dynamic(fourth, voters)
    await quorum.start(fourth)
    await trio.sleep(SETTLE_S)
    tools = await quorum.tools()
    who: dict[str, Any] = {"id": fourth.node_id, "directory": fourth.directory_id, "properties": properties}
    endpoint = {"name": "CONTROLLER", "host": LOOPBACK, "port": fourth.port}
    await tools.do("add-voter", endpoints=[endpoint], **who)
    await tools.replication(*(voter.address for voter in voters))
    await tools.do("remove-voter", **who)
    await quorum.stop(fourth)
    del quorum.servers[fourth.node_id]


async def broker_story(directory: Path, recorder: Recorder) -> None:
    """Run one broker with values in every compression, and the three consumers, alone and as groups."""
    async with running_jvm_servers(directory, recorder=recorder) as servers:
        broker = await servers.add(1, roles="broker,controller")
        await servers.format_static(broker, [broker.voter])
        await servers.start(broker)
        await servers.leader()
        tools = await servers.tools()
        address = f"{LOOPBACK}:{broker.broker_port}"
        java: dict[str, Any] = {"bootstrap.servers": address}
        await tools.do("create-topic", topic=TOPIC, properties=java)
        for compression in COMPRESSIONS:
            await tools.do(
                "produce", topic=TOPIC, count=VALUES, size=64, properties=java | {"compression.type": compression}
            )
        count = VALUES * len(COMPRESSIONS)
        for suffix in (None, "readers"):
            group, other = (None, None) if suffix is None else (f"librdkafka-{suffix}", f"python-{suffix}")
            named = {} if suffix is None else {"group.id": f"java-{suffix}", "auto.offset.reset": "earliest"}
            found = await tools.do("consume", topic=TOPIC, count=count, tell=False, properties=java | named)
            assert found["count"] == count
            entries = await trio.to_thread.run_sync(read_with_librdkafka, address, TOPIC, count, group)
            assert len(entries) == count
            # kafka-python reads the last three compressions only with packages that this project does not use.
            entries = await trio.to_thread.run_sync(read_with_kafka_python, address, TOPIC, 2 * VALUES, other)
            assert len(entries) == 2 * VALUES


def stored_files(server: KafkaServer) -> Iterable[tuple[str, str]]:
    """Yield the small files of a server's directory: segments, checkpoints, quorum-state, meta.properties."""
    for path in sorted(server.directory.rglob("*")):
        if path.suffix in STORED and path.is_file() and 0 < path.stat().st_size <= MAX_FILE_BYTES:
            yield str(path.relative_to(server.directory)), path.read_bytes().hex()


def exchanges(frames: Iterable[RecordedFrame]) -> list[dict[str, Any]]:
    """Return some exchanges of different shapes for each API and version that our codec has."""
    waiting: dict[tuple[str, int, int], RecordedFrame] = {}
    found: dict[tuple[int, int], dict[tuple[int, int, bytes], dict[str, Any]]] = defaultdict(dict)
    for frame in frames:
        place = (frame.server, frame.connection, frame.correlation_id)
        if frame.is_request:
            waiting[place] = frame
        elif (request := waiting.pop(place, None)) is not None and is_ours(frame):
            found[frame.api_key, frame.api_version].setdefault(shape(request, frame), document(request, frame))
    return [each for kind in sorted(found) for each in select_spread(kind[0], found[kind])]


def shape(request: RecordedFrame, response: RecordedFrame) -> tuple[int, int, bytes]:
    """Return the sort key of an exchange: its lengths and its content."""
    lengths = (len(request.frame), len(response.frame))
    if response.api_key != ApiKey.FETCH:
        return *lengths, response.frame[CORRELATION_ID_BYTES:]
    # Fetch responses always differ in their records; the other differences are a few fields of the partition.
    _, message = decode_response(response.api_key, response.api_version, response.frame)
    differences = [
        (each.error_code, each.current_leader.leader_id, each.diverging_epoch.epoch >= 0, each.snapshot_id.epoch >= 0)
        for topic in message.responses
        for each in topic.partitions
    ]
    return *lengths, repr(differences).encode()


def is_ours(frame: RecordedFrame) -> bool:
    """Return True if our codec has this version, and the frame is small enough for a file in this repository."""
    lowest, highest = VERSIONS.get(frame.api_key, (0, -1))
    return lowest <= frame.api_version <= highest and len(frame.frame) <= MAX_FRAME_BYTES


def select_spread(api_key: int, by_shape: Mapping[tuple[int, int, bytes], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the shortest exchange, the longest, and some between."""
    ordered = [by_shape[each] for each in sorted(by_shape)]
    kept = KEPT_FETCHES if api_key == ApiKey.FETCH else KEPT_EXCHANGES
    if len(ordered) <= kept:
        return ordered
    return [ordered[number * (len(ordered) - 1) // (kept - 1)] for number in range(kept)]


def document(request: RecordedFrame, response: RecordedFrame) -> dict[str, Any]:
    """Return an exchange in the form of the file."""
    return {
        "name": ApiKey(request.api_key).name,
        "api": request.api_key,
        "version": request.api_version,
        "request": request.frame.hex(),
        "response": response.frame.hex(),
    }


async def record() -> dict[str, Any]:
    """Run all three stories; return the recording."""
    with tempfile.TemporaryDirectory() as scratch:
        stories: dict[str, Any] = {}
        for name, is_dynamic in (("static quorum", False), ("dynamic quorum", True)):
            recorder = Recorder()
            files = await quorum_story(Path(scratch) / name.split()[0], recorder, is_dynamic=is_dynamic)
            stories[name] = {"exchanges": exchanges(recorder.frames), "files": files}
        recorder = Recorder()
        await broker_story(Path(scratch) / "broker", recorder)
        stories["broker"] = {"exchanges": exchanges(recorder.frames), "files": {}}
    return {"about": ABOUT, "stories": stories}


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else VECTORS
    target.write_text(json.dumps(trio.run(record), indent=1) + "\n", encoding="utf-8")
    print(f"{target}: {target.stat().st_size} bytes")
