"""The product's voters and Kafka's controllers in one quorum: both kinds lead, follow, and return after a crash.

Two mixtures: one controller of Kafka with two of our voters, and two with one. Each runs with voters in the
settings (static) and voters in the log (dynamic). `make interop-kafka` downloads Kafka.
"""

from pathlib import Path
from typing import Final

import pytest
import trio

from tests.interop.kafka import tool_jvm
from tests.interop.kafka.jvm import (
    OFTEN_SNAPSHOTS,
    KafkaServer,
    running_jvm_servers,
    snapshots_taken,
    wait_for_downloaded_snapshot,
    wait_for_snapshot,
)
from tests.interop.kafka.mixed import MixedQuorum, running_mixed_quorum
from tests.processes import free_ports

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(tool_jvm.missing() is not None, reason=tool_jvm.missing() or "all is there"),
]

STORY_S: Final = 240.0
KILL_STORY_S: Final = 600.0
KILLS: Final = 20
WATCHED_S: Final = 6.0
MIXTURES: Final = pytest.mark.parametrize(
    ("ours", "theirs"), [((1, 2), (3,)), ((1,), (2, 3))], ids=["one of Kafka's", "two of Kafka's"]
)
QUORUMS: Final = pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])


@QUORUMS
@MIXTURES
async def test_leadership_moves_between_both_kinds(
    tmp_path: Path, ours: tuple[int, ...], theirs: tuple[int, ...], *, is_dynamic: bool
) -> None:
    """A resigning leader sends EndQuorumEpoch; the next one sends BeginQuorumEpoch."""
    with trio.fail_after(STORY_S):
        async with (
            running_jvm_servers(tmp_path) as jvm,
            running_mixed_quorum(jvm, ours, theirs, is_dynamic=is_dynamic) as quorum,
        ):
            await let_both_kinds_lead(quorum)
            await quorum.wait_for_progress()
            print(f"\n{quorum.summary()}")
            await quorum.equal_logs()


@QUORUMS
@MIXTURES
async def test_committed_records_survive_kills_one_by_one(
    tmp_path: Path, ours: tuple[int, ...], theirs: tuple[int, ...], *, is_dynamic: bool
) -> None:
    """After each of 20 kills the other two servers commit, and the restarted server gets all committed records."""
    with trio.fail_after(KILL_STORY_S):
        async with (
            running_jvm_servers(tmp_path) as jvm,
            running_mixed_quorum(jvm, ours, theirs, is_dynamic=is_dynamic) as quorum,
        ):
            leader, epoch = await quorum.leader()
            await quorum.wait_for_progress()
            began, killed_leaders = trio.current_time(), 0
            for number in range(KILLS):
                node_id = quorum.node_ids[number % len(quorum.node_ids)]
                leader, epoch = await quorum.leader(epoch_above=epoch - 1)
                killed_leaders += node_id == leader
                await quorum.kill(node_id)
                await quorum.wait_for_progress()
                await quorum.start(node_id)
                await quorum.wait_until_caught_up(node_id)
            took_s = trio.current_time() - began
            await let_both_kinds_lead(quorum)
            print(f"\n{KILLS} killed in {took_s:.0f} s, {killed_leaders} of them leaders; {quorum.summary()}")
            await quorum.equal_logs()


@QUORUMS
async def test_kraft_serve_joins_kafka_controllers(tmp_path: Path, *, is_dynamic: bool) -> None:
    """`garlicfarm kraft serve --kafka-metadata` is killed, and stopped as an operator does."""
    with trio.fail_after(STORY_S):
        async with (
            running_jvm_servers(tmp_path) as jvm,
            running_mixed_quorum(jvm, (1,), (2, 3), is_dynamic=is_dynamic, by_command=True) as quorum,
        ):
            await quorum.leader()
            await let_both_kinds_lead(quorum)
            for node_id in quorum.node_ids:
                await quorum.kill(node_id)
                await quorum.wait_for_progress()
                await quorum.start(node_id)
                await quorum.wait_until_caught_up(node_id)
            await quorum.make_lead([1])
            print(f"\n{quorum.summary()}")
            await quorum.equal_logs()


@QUORUMS
async def test_kafka_controller_fetches_our_snapshot(tmp_path: Path, *, is_dynamic: bool) -> None:
    """The controller must also read our snapshot: a controller exits at an unreadable snapshot."""
    with trio.fail_after(STORY_S):
        async with (
            running_jvm_servers(tmp_path) as jvm,
            running_mixed_quorum(
                jvm, (1, 2), (3,), is_dynamic=is_dynamic, our_settings={"metadata.max.retention.bytes": 1}
            ) as quorum,
        ):
            leader = await quorum.make_lead(quorum.ours)
            await quorum.kill(3)
            taken = (await quorum.ask(leader, "snapshot"))["snapshot"]
            assert (await quorum.ask(leader, "status"))["start"] == taken
            await quorum.wipe(3)
            await quorum.start(3)
            await wait_for_downloaded_snapshot(jvm.servers[3], taken)
            await quorum.wait_until_caught_up(3)
            await quorum.make_lead([3])
            print(f"\nKafka's has our snapshot of {taken}; {quorum.summary()}")
            await quorum.equal_logs()


@QUORUMS
async def test_our_voter_fetches_kafka_snapshot_and_sends_its_own(tmp_path: Path, *, is_dynamic: bool) -> None:
    """Our voter keeps the records of Kafka's image; its own later snapshot begins with them.

    The snapshots taken and fetched by Kafka's servers are read from their log files: with this short retention, the
    snapshot files are soon deleted.
    """
    with trio.fail_after(STORY_S):
        async with (
            running_jvm_servers(tmp_path) as jvm,
            running_mixed_quorum(
                jvm,
                (1,),
                (2, 3),
                is_dynamic=is_dynamic,
                jvm_settings=OFTEN_SNAPSHOTS,
                our_settings={"metadata.max.retention.bytes": 1},
            ) as quorum,
        ):
            leader = await quorum.make_lead(jvm.servers)
            await quorum.kill(1)
            await wait_for_snapshot(jvm.servers[leader])
            await quorum.wipe(1)
            await quorum.start(1)
            await quorum.wait_until_caught_up(1)
            fetched = (await quorum.ask(1, "status"))["snapshot"]
            assert fetched in snapshots_taken(jvm.servers[leader])
            await quorum.make_lead(quorum.ours)
            taken = (await quorum.ask(1, "snapshot"))["snapshot"]
            assert taken > fetched
            other = next(node_id for node_id in jvm.servers if node_id != leader)
            await quorum.kill(other)
            await quorum.wipe(other)
            await quorum.start(other)
            await wait_for_downloaded_snapshot(jvm.servers[other], taken)
            await quorum.wait_until_caught_up(other)
            await quorum.make_lead([other])
            print(f"\nours has Kafka's snapshot of {fetched}, Kafka's has our snapshot of {taken}; {quorum.summary()}")
            await quorum.equal_logs()


async def test_standby_controller_survives_without_registration(tmp_path: Path) -> None:
    """The controller tries to register until a controller of Kafka leads; our voter, as leader, delays its refusal."""
    with trio.fail_after(STORY_S):
        async with (
            running_jvm_servers(tmp_path) as jvm,
            running_mixed_quorum(jvm, (1, 2), (3,), is_dynamic=False) as quorum,
        ):
            await quorum.make_lead(quorum.ours)
            await quorum.wait_until_caught_up(3)
            before, began = tries(jvm.servers[3]), trio.current_time()
            await trio.sleep(WATCHED_S)
            tried, took_s = tries(jvm.servers[3]) - before, trio.current_time() - began
            assert jvm.servers[3].lives
            assert 0 < tried <= 3 * took_s
            await quorum.make_lead([3])
            await quorum.wait_for_progress()
            print(f"\n{tried} tries to register in {took_s:.0f} s")
            await quorum.equal_logs()


@pytest.mark.parametrize(
    ("ours", "wrong", "leaders"),
    [((1, 2), 3, (1, 2)), ((1, 2), 2, (3,)), ((1,), 1, (2, 3)), ((1,), 2, (3,))],
    ids=["theirs-under-ours", "one-of-two-under-theirs", "ours-under-theirs", "theirs-under-theirs"],
)
async def test_election_succeeds_despite_wrong_address(
    tmp_path: Path, ours: tuple[int, ...], wrong: int, leaders: tuple[int, ...]
) -> None:
    """A follower restarts with a wrong advertised.listeners, the leader is killed, and another server leads."""
    theirs = tuple(node_id for node_id in (1, 2, 3) if node_id not in ours)
    with trio.fail_after(STORY_S):
        async with (
            running_jvm_servers(tmp_path) as jvm,
            running_mixed_quorum(jvm, ours, theirs, is_dynamic=True) as quorum,
        ):
            leader = await quorum.make_lead(leaders)
            right, nowhere = quorum.server(wrong).port, free_ports(1)[0]
            await quorum.advertise(wrong, nowhere)
            await quorum.wait_until_caught_up(wrong)
            if leader in jvm.servers:
                await quorum.wait_until_recorded(wrong, nowhere)
            else:
                await trio.sleep(WATCHED_S)
                await quorum.wait_until_recorded(wrong, right)
            await quorum.kill(leader)
            began = trio.current_time()
            await quorum.wait_for_progress()
            print(f"\nafter {trio.current_time() - began:.1f} s, {quorum.summary()}")
            await quorum.advertise(wrong, right)
            await quorum.wait_until_recorded(wrong, right)
            await quorum.start(leader)
            await quorum.equal_logs()


def tries(server: KafkaServer) -> int:
    return server.log.read_text(encoding="utf-8").count("Recorded new KRaft controller")


async def let_both_kinds_lead(quorum: MixedQuorum) -> None:
    """Make leaders resign until a server of either kind has led and committed a record."""
    epoch = -1
    while True:
        leader, epoch = await quorum.leader(epoch_above=epoch)
        await quorum.wait_for_progress()
        if len({quorum.is_ours(node_id) for node_id in quorum.seen.leaders}) > 1:
            return
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(quorum.resign, leader)
            await quorum.leader(epoch_above=epoch)
            print(f"\nserver {leader} resigns, another leads after {trio.current_time() - began:.2f} s", end="")
