"""Leadership transfer, for an operator and before a clean stop.

Only the leader can transfer leadership. The text of a failure names the present leader or the next step.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

import trio

from bridge.api.control import Refused
from bridge.api.trace import Scalar
from bridge.api.view import VoterView
from bridge.core.membership.admission import server_label
from bridge.node.raft.replica import Replica
from consensus import ServerBusyError, ServerId, ServerStoppedError, TransferOutcome, integer_id

STOP_PATIENCE_SECONDS = 2.0
"""Longest wait of a stop for a successor.

Without a successor, the other servers elect a leader after an election timeout.
"""
REMOVAL_PATIENCE_SECONDS = 10.0
REMOVAL_POLL_SECONDS = 0.1


EXPLAINED = {
    TransferOutcome.NOT_LEADER: "only the leader can hand leadership over, and this node does not lead (leader:"
    " {leader}); `garlicfarm status` shows the reason for a missing leader",
    TransferOutcome.ANOTHER_UNDER_WAY: "another handover of leadership runs; check again in a moment",
    TransferOutcome.TO_ITSELF: "{leader} already leads",
    TransferOutcome.NOT_A_VOTER: "this server is not a voter; `garlicfarm status` lists the voters",
    TransferOutcome.NO_VOTER: "no other voter can get leadership; `garlicfarm status` lists the voters",
    TransferOutcome.TIMED_OUT: (
        "the other node was not caught up, or not reachable, within an election timeout; this node still leads"
    ),
    TransferOutcome.DECLINED: (
        "the other node refused to take over (a full disk, or it follows another leader); this node still leads"
    ),
    TransferOutcome.ELSEWHERE: "another node was elected instead: {leader}",
    TransferOutcome.UNKNOWN: (
        "this node no longer leads, and does not know another leader yet; `garlicfarm status` shows the leader"
    ),
}
"""Texts of failed transfers, by outcome."""


async def hand_over(replica: Replica, voters: Sequence[VoterView], to: str | None) -> str:
    """Transfer leadership to the named voter, or to the most up-to-date one; return the new leader's name."""
    target = None if to is None else voter_named(voters, to)
    try:
        ended = await replica.server.transfer_leadership(target)
    except (ServerBusyError, ServerStoppedError) as error:
        raise Refused(503, "busy", f"this node cannot do it now: {error}; try again in a moment") from error
    leader = "unknown" if ended.leader is None else name_of_voter(voters, integer_id(ended.leader))
    if ended.outcome is TransferOutcome.DONE:
        return leader
    raise refused_transfer(ended.outcome, leader)


def refused_transfer(outcome: TransferOutcome, leader: str) -> Refused:
    """Return the error that explains a failed handover to operators; `leader` is the leader now."""
    return Refused(409, f"transfer-{outcome.value}", EXPLAINED[outcome].format(leader=leader))


async def hand_over_before_stop(
    replica: Replica, name_of: Callable[[int], str | None] = lambda _: None
) -> dict[str, Scalar] | None:
    """Transfer leadership if this server leads; return the successor and its term for the trace, if any."""
    if not replica.leads:
        return None
    with trio.move_on_after(STOP_PATIENCE_SECONDS), suppress(ServerBusyError, ServerStoppedError):
        ended = await replica.server.transfer_leadership()
        if ended.outcome is TransferOutcome.DONE:
            leader = None if ended.leader is None else integer_id(ended.leader)
            return {
                "leader": leader,
                "term": replica.server.role.term,
                "leaderName": None if leader is None else name_of(leader),
            }
    return None


async def until_removed(replica: Replica, expect: int) -> bool:
    """Wait up to `REMOVAL_PATIENCE_SECONDS` until the leader has removed this server; return True if it has.

    Do not wait if fewer than `expect` voters would remain, because then the leader does not remove this server.
    """
    with trio.move_on_after(REMOVAL_PATIENCE_SECONDS):
        while not _is_removed(replica):
            voters = replica.server.describe().raft.configuration.voter_ids
            if replica.server_id in voters and len(voters) <= expect:
                return False
            await trio.sleep(REMOVAL_POLL_SECONDS)
        return True
    return False


def _is_removed(replica: Replica) -> bool:
    raft = replica.server.describe().raft
    return not raft.configuration.is_joint and replica.server_id not in raft.configuration.member_ids


def voter_named(voters: Sequence[VoterView], name: str) -> ServerId:
    """Return the voter of that name or Raft id; raise `Refused` with the list of voters."""
    # A former identity may still vote under the same name: an evicted one comes last, otherwise the newest first.
    for voter in sorted(voters, key=lambda each: (str(each.raft_id) != name, each.evicted, -each.raft_id)):
        if name in (voter.name, str(voter.raft_id)):
            return voter.raft_id
    known = ", ".join(name_of_voter(voters, voter.raft_id) for voter in voters)
    raise Refused(404, "no-such-voter", f"no voter has the name or Raft id {name[:64]!r}; there are {known}")


def name_of_voter(voters: Sequence[VoterView], raft_id: int) -> str:
    """Return the label that operators use for a voter."""
    return server_label(raft_id, next((voter.name for voter in voters if voter.raft_id == raft_id), None))
