"""Before a server that has voted in an earlier life votes again: a first look around.

A state directory can be a clone of one that runs elsewhere, or older than the last life of its own identity, and the
files cannot tell: a clone of a whole disk has the same inodes. Gossip finds both out within a few periods of the first
contact (a live twin answers; peers know a later generation) and ends the node. A Raft server that was started at once
would have voted meanwhile, and in an election two twins of one voter make two leaders.

So a server with a storage waits until gossip has a peer, and then for some periods more. Without any peer it does not
wait for ever: a farm whose gossip is cut off still has its Raft port, and whoever cannot be heard cannot warn either.
"""

from typing import Final

import trio

from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.membership.membership_provider import MembershipProvider, gossip_options
from bridge.node.raft.replica import STORAGE_NOTE
from bridge.node.settings.configuration import NodeConfiguration

PERIODS_WITH_A_PEER: Final = 5
PERIODS_WITHOUT: Final = 15


async def wait_for_conflicts(
    company: MembershipProvider, member_directory: MemberDirectory, settings: NodeConfiguration
) -> None:
    """Returns when nothing has spoken against this process, or nobody is there to; at once before its first storage."""
    if settings.gossip is None or not (settings.state_dir / STORAGE_NOTE).exists():
        return
    period_s = gossip_options(settings.gossip).gossip_period_ms / 1000
    with trio.move_on_after(PERIODS_WITHOUT * period_s) as alone:
        while company.counts[1] == 0:
            await member_directory.news()
    if not alone.cancelled_caught:
        await trio.sleep(PERIODS_WITH_A_PEER * period_s)
