"""An operator's order to transfer leadership, submitted at any node.

    order at a follower ──▶ {"handover": …}, with this node's proof ──▶ committed ──▶ the leader of that term
        └── waits until another server leads ◀─────────── transfer ◀── signed by a member or an operator's key?

Only the leader can transfer leadership: it delays proposals while it brings its successor up to date. So a node that
does not lead sends the order through the log, like most orders of an operator. The order does not change the farm's
state (`bridge.wire.log.handover_entries`).

Such orders do not give a member more power: it could already campaign in a later term.
"""

from collections.abc import Callable, Mapping, Sequence

import trio

from bridge.api.control import Refused, SubmitOutcome
from bridge.api.events import HANDOVER_ORDERED
from bridge.api.view import VoterView
from bridge.core.log.records import Author, ProvenRecord, Scope
from bridge.core.membership.admission import Admitted, raft_id_of
from bridge.core.membership.client_keys import Client
from bridge.node.events.event_log import EventLog
from bridge.node.raft.entry_signer import EntrySigner
from bridge.node.raft.handover import hand_over, name_of_voter, refused_transfer, voter_named
from bridge.node.raft.replica import Replica
from bridge.wire.log.handover_entries import Handover, handover_entry, handover_in
from consensus import ServerBusyError, ServerStoppedError, TransferOutcome, integer_id

ORDERS_WAITING = 4
"""The limit of waiting orders. A few suffice: a transfer ends the term, and the other orders of that term lapse."""
LEAST_PATIENCE_S = 5.0


async def order_handover(
    replica: Replica, signer: EntrySigner, voters: Sequence[VoterView], to: str | None, election_timeout_ms: int
) -> str:
    """Transfer leadership to the named voter, or to any without `to`; return the new leader's name.

    Any node can do this, whether or not it leads. Raise `Refused` with the reason if the transfer fails.
    """
    role = replica.server.role
    if replica.leads or role.leader is None:
        return await hand_over(replica, voters, to)
    target = None if to is None else integer_id(voter_named(voters, to))
    if target == role.leader:
        raise refused_transfer(TransferOutcome.TO_ITSELF, name_of_voter(voters, integer_id(role.leader)))
    answer = await replica.submit(signer.vouch(handover_entry(Handover(role.term, target))))
    if answer.outcome is not SubmitOutcome.COMMITTED:
        raise Refused(503, answer.outcome.value, f"the order did not reach the leader: {answer.reason}")
    with trio.move_on_after(max(LEAST_PATIENCE_S, 4 * election_timeout_ms / 1000)):
        while (now := replica.server.role).leader is None or now.term == role.term:
            await replica.role_changes()
        leader = integer_id(now.leader)
        if target in {None, leader}:
            return name_of_voter(voters, leader)
        raise refused_transfer(TransferOutcome.ELSEWHERE, name_of_voter(voters, leader))
    leading = name_of_voter(voters, integer_id(role.leader))
    raise Refused(
        409,
        "transfer-timed-out",
        f"{leading} has the order, but still leads: the other node was not caught up, or not reachable, within an"
        f" election timeout, or {leading} runs a version that does not know such orders; `garlicfarm events` there"
        " has more",
    )


class HandoverOrders:
    """The queue of committed orders, which the leader carries out.

    `committed` receives each newly committed entry that the state machine does not know (a *foreign* entry).
    """

    def __init__(self, trace: EventLog, name_of: Callable[[int], str | None] = lambda _: None) -> None:
        self._trace = trace
        self._name_of = name_of
        self._orders, self._waiting = trio.open_memory_channel[Handover](ORDERS_WAITING)

    def committed(self, entry: ProvenRecord, admitted: Mapping[int, Admitted], clients: Mapping[bytes, Client]) -> None:
        """Queue the order in a newly committed entry, if its author may give it."""
        order = handover_in(entry.data)
        if order is None or entry.author is None or not _may_order(entry.author, admitted, clients):
            return
        try:
            self._orders.send_nowait(order)
        except trio.WouldBlock:
            self._trace.append(HANDOVER_ORDERED, {"outcome": "another one is under way"})

    async def run(self, replica: Replica) -> None:
        """Carry out the orders, until canceled."""
        async for order in self._waiting:
            if not replica.leads or replica.server.role.term != order.term:
                continue
            try:
                ended = await replica.server.transfer_leadership(order.to)
                outcome = ended.outcome.value
            except (ServerBusyError, ServerStoppedError) as error:
                outcome = str(error)
            name = None if order.to is None else self._name_of(integer_id(order.to))
            self._trace.append(HANDOVER_ORDERED, {"server": order.to, "name": name, "outcome": outcome})


def _may_order(author: Author, admitted: Mapping[int, Admitted], clients: Mapping[bytes, Client]) -> bool:
    server_id = raft_id_of(admitted, author.node_id)
    if server_id is not None:
        return admitted[server_id].is_member
    client = clients.get(author.node_id)
    return client is not None and client.admitted and Scope.OPERATOR in client.scopes
