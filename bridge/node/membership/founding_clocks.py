"""The comparison of the nodes' clocks before there is a log: the alarm `clock` during the founding.

    every few seconds   query `clock` ──▶ each node's reply: its clock ──▶ offsets to this node's clock
                        a majority differs from this node's clock      ──▶ alarm here, at the node that is wrong
                        no majority agrees (two nodes that differ)     ──▶ alarm at each

A board without a battery starts in 1970. A farm can be created with such a clock: log time follows a majority, and is
correct once the clocks are. But until then nothing is published, and without this alarm the cause would be reported
only after reports are in the log. A clock in the signed metadata would be outdated after an operator sets the clock, so
clocks are queried.

A reply is authenticated by the farm's key only, not by a signature (`bridge.node.membership.user_messages`). Therefore
it affects only an alarm. After the farm is created, the log compares clocks by signed reports
(`bridge.node.tasks.timekeeping`).
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio

from bridge.api.alarms import CLOCK
from bridge.core.farm.clock_alarms import founding_clock_text
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import clock_ms
from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.membership.membership_provider import MembershipProvider
from gossip import BusyError, Group, NodeId

CLOCK_QUERY: Final = "clock"
LOOK_EVERY_S: Final = 5.0
ANSWER_S: Final = 1.0
DIGITS_MAX: Final = 15


async def watch_founding_clocks(
    provider: MembershipProvider,
    directory: MemberDirectory,
    own_name: str,
    alarms: Alarms,
    has_farm: Callable[[], bool],
    clock: Callable[[], int] = clock_ms,
) -> None:
    """Query and compare clocks until the farm exists. Return immediately without gossip."""
    if not isinstance(provider, Group):
        return
    while not has_farm():
        if directory.reachable():
            offsets_ms = await _offsets(provider, directory, clock)
            if has_farm():
                return
            text = founding_clock_text(own_name, offsets_ms)
            if text is None:
                alarms.clear(CLOCK)
            else:
                alarms.set(CLOCK, text)
        await trio.sleep(LOOK_EVERY_S)


async def _offsets(group: Group, directory: MemberDirectory, clock: Callable[[], int]) -> dict[str, int]:
    """Return by name the milliseconds that the clock of each replying node is ahead of this one's."""
    found: dict[str, int] = {}
    with suppress(BusyError):
        async with group.query(CLOCK_QUERY, b"", ANSWER_S) as answers:
            with trio.move_on_after(ANSWER_S), suppress(trio.EndOfChannel):
                while len(found) < len(directory.reachable()):
                    answer = await answers.receive()
                    responder = NodeId(answer.responder)
                    is_clock = answer.body.isdigit() and len(answer.body) <= DIGITS_MAX
                    if is_clock and directory.metadata_of(responder) is not None:
                        found[directory.name_of(responder)] = int(answer.body) - clock()
    return found
