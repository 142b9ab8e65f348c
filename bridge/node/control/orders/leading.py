"""The takeover of leadership by a voter that receives an order which only the leader can carry out.

    order at a follower ─▶ handover to this node, through the log ─▶ it leads ─▶ its state is current ─▶ the order

The leader writes approvals, evictions, new keys and feature levels. A node never forwards such an order: otherwise a
stolen node could evict others. Instead the node takes over leadership and carries out the order. The same user could
request this takeover by `garlicfarm transfer`, so the user does not get further rights. Secrets do not leave the node.
A node without a vote cannot lead; its refusal names the voters.

A follower gets committed entries some time after the leader. So before it checks an order, it applies all entries
acknowledged so far (`FoundedFarm.catch_up`). Otherwise it could refuse an order that depends on an order at another
node.
"""

from collections.abc import Awaitable, Callable, Sequence

import trio

from bridge.api.control import Refused
from bridge.core.log.records import IdentityRecord
from bridge.core.membership.admission import server_name
from bridge.node.founded_farm import FoundedFarm
from bridge.wire.log.entries import encode
from consensus import NotLeaderError, Outcome, ServerBusyError, ServerStoppedError, integer_id

HandOver = Callable[[str], Awaitable[str]]
"""Transfers leadership to the server of this Raft id; raises `Refused`."""
CONTACT_POLL_S = 0.1
COMMIT_PATIENCE_S = 10.0
"""Longest time to commit an entry of the leader and apply it here."""


def check_can_lead(farm: FoundedFarm) -> None:
    """Raise `Refused` unless this node leads, or can take over leadership."""
    replica = farm.replica
    if replica.leads:
        return
    if replica.server.role.leader is None:
        text = "only the leader can do this, and none is known now: `garlicfarm status` shows the reason"
        raise Refused(409, "not-leader", text)
    voters = sorted(map(integer_id, replica.server.describe().raft.configuration.voter_ids))
    if replica.server_id not in voters:
        names = ", ".join(_names(farm, voters))
        text = f"only the leader can do this, and this node cannot vote or lead. Run the command at a voter: {names}"
        raise Refused(409, "not-a-voter", text)


async def lead(farm: FoundedFarm, hand_over: HandOver) -> bool:
    """Take over leadership unless this node leads; after a takeover its state includes all earlier committed entries.

    Return True after a takeover. Raise `Refused` with the reason if it fails.
    """
    replica = farm.replica
    check_can_lead(farm)
    if replica.leads:
        return False
    await hand_over(str(replica.server_id))
    try:
        await replica.read_barrier()
    except (NotLeaderError, ServerBusyError, ServerStoppedError) as error:
        raise Refused(503, "not-leader", f"this node could not keep leadership ({error}); try again") from error
    await _contacts(farm)
    return True


async def commit_as_leader(farm: FoundedFarm, record: IdentityRecord, unknown: str) -> None:
    """Have an entry of the leader committed, and apply it; raise `Refused` otherwise.

    Without a reply, the entry may still be committed later. `unknown` is the advice for this case, with the command
    that shows the outcome.
    """
    try:
        entry = farm.signer.sign(encode(record))
    except ValueError as error:
        raise Refused(409, "no-entry", f"this cannot be written as an entry: {error}") from error
    server, why = farm.replica.server, f"it took longer than {COMMIT_PATIENCE_S:.0f} s"
    try:
        with trio.move_on_after(COMMIT_PATIENCE_S):
            answer = await server.propose((entry,))
            if answer.outcome in {Outcome.NOT_LEADER, Outcome.BUSY}:
                text = "this node does not lead, or is busy: the entry was not written; try again"
                raise Refused(503, answer.outcome.value, text)
            why = "leadership changed, or no majority answers"
            if answer.position is not None:
                why = "it is committed, but this node has not applied it"
                await server.wait_applied(answer.position.index)
                return
    except ServerBusyError as error:
        raise Refused(503, "busy", f"this node cannot do it now: {error}; try again in a moment") from error
    except ServerStoppedError as error:
        why = f"this node stops: {error}"
    raise Refused(504, "unknown", f"{why}. The outcome is unknown: {unknown}")


def _names(farm: FoundedFarm, server_ids: Sequence[int]) -> list[str]:
    return [server_name(farm.state.admitted, each) for each in server_ids]


async def _contacts(farm: FoundedFarm) -> None:
    """Wait until each follower has replied to the new leader, for at most `contact_within_ms`."""
    server = farm.replica.server
    with trio.move_on_after(farm.contact_within_ms / 1000):
        while any(each.contact_ms is None for each in server.describe().raft.followers):  # noqa: ASYNC110 - no event
            await trio.sleep(CONTACT_POLL_S)
