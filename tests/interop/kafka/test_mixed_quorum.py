"""Voters of ours beside Kafka's own controllers in one quorum: either leads, follows, and comes back after a crash.

Two mixtures, one of Kafka's beside two of ours, and one of ours beside two of Kafka's, each with voters that stand in
the settings (static) and voters that stand in the log (dynamic). `make interop-kafka` brings Kafka.
"""

from pathlib import Path
from typing import Final

import pytest
import trio

from tests.interop.kafka import tool_jvm
from tests.interop.kafka.jvm import running_jvm_servers
from tests.interop.kafka.mixed import MixedQuorum, running_mixed_quorum

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(tool_jvm.missing() is not None, reason=tool_jvm.missing() or "all is there"),
]

STORY_S: Final = 240.0
KILL_STORY_S: Final = 600.0
KILLS: Final = 20
HANDOVER_S: Final = 2.0
"""A follower on its own would wait for its fetch timeout, which is as long."""
MIXTURES: Final = pytest.mark.parametrize(
    ("ours", "theirs"), [((1, 2), (3,)), ((1,), (2, 3))], ids=["one of Kafka's", "two of Kafka's"]
)
QUORUMS: Final = pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])


@QUORUMS
@MIXTURES
async def test_each_leads_the_others_in_turn(
    tmp_path: Path, ours: tuple[int, ...], theirs: tuple[int, ...], *, is_dynamic: bool
) -> None:
    """A leader that resigns says so by EndQuorumEpoch; the next one announces itself by BeginQuorumEpoch."""
    with trio.fail_after(STORY_S):
        async with (
            running_jvm_servers(tmp_path) as jvm,
            running_mixed_quorum(jvm, ours, theirs, is_dynamic=is_dynamic) as quorum,
        ):
            await both_have_led(quorum)
            await quorum.progress()
            print(f"\n{quorum.told()}")
            await quorum.equal_logs()


@QUORUMS
@MIXTURES
async def test_nothing_is_lost_when_each_is_killed_in_turn(
    tmp_path: Path, ours: tuple[int, ...], theirs: tuple[int, ...], *, is_dynamic: bool
) -> None:
    """SIGKILL, twenty times; the other two go on, and the killed one comes back and has all that was committed."""
    with trio.fail_after(KILL_STORY_S):
        async with (
            running_jvm_servers(tmp_path) as jvm,
            running_mixed_quorum(jvm, ours, theirs, is_dynamic=is_dynamic) as quorum,
        ):
            leader, epoch = await quorum.leader()
            await quorum.progress()
            began, killed_leaders = trio.current_time(), 0
            for number in range(KILLS):
                node_id = quorum.node_ids[number % len(quorum.node_ids)]
                leader, epoch = await quorum.leader(epoch_above=epoch - 1)
                killed_leaders += node_id == leader
                await quorum.kill(node_id)
                await quorum.progress()
                await quorum.start(node_id)
                await quorum.caught_up(node_id)
            took_s = trio.current_time() - began
            await both_have_led(quorum)
            print(f"\n{KILLS} killed in {took_s:.0f} s, {killed_leaders} of them leaders; {quorum.told()}")
            await quorum.equal_logs()


async def both_have_led(quorum: MixedQuorum) -> None:
    """Have leaders resign until a server of either kind has led, and committed something."""
    epoch = -1
    while True:
        leader, epoch = await quorum.leader(epoch_above=epoch)
        await quorum.progress()
        if len({quorum.is_ours(node_id) for node_id in quorum.seen.leaders}) > 1:
            return
        began = trio.current_time()
        await quorum.resign(leader)
        print(f"\nserver {leader} resigned", end="")
        await quorum.leader(epoch_above=epoch)
        print(f": another leads after {trio.current_time() - began:.2f} s", end="")
