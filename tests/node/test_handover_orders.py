"""An operator's order to hand over, given to a follower, reaches the leader through the log."""

from dataclasses import dataclass, field
from typing import cast

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from trio.testing import MockClock

from bridge.api.control import Refused, SubmitAnswer, SubmitOutcome
from bridge.api.view import VoterView
from bridge.core.log.records import Author, ProvenRecord, Scope
from bridge.core.membership.admission import Admitted, Standing
from bridge.core.membership.client_keys import Client
from bridge.node.events.event_log import EventLog
from bridge.node.raft.entry_signer import EntrySigner
from bridge.node.raft.handover import voter_named
from bridge.node.raft.handover_orders import HandoverOrders, order_handover
from bridge.node.raft.replica import Replica
from bridge.wire.log.entries import EntryReader, decode
from bridge.wire.log.handover_entries import Handover, handover_entry, handover_in
from bridge.wire.log.proof import sign_entry
from consensus.core.effects import Role, RoleChanged, TransferEnded, TransferOutcome
from consensus.core.model import ServerId
from gossip.wire import node_id_of
from tests.authored import CLUSTER_ID
from tests.effort import each_case
from tests.node.farm_stage import Stage

VOTERS = tuple(VoterView(each, f"tcp://{each}", f"node-{each}") for each in (1, 2, 3))
TERM = 7
FOLLOWING = RoleChanged(Role.FOLLOWER, TERM, 3)


@dataclass
class Server:
    """A replica and its server in one object: server 1 follows server 3, and a submission sets the role `later`."""

    role: RoleChanged = FOLLOWING
    leads: bool = False
    outcome: SubmitOutcome = SubmitOutcome.COMMITTED
    later: RoleChanged | None = None
    """Role after a submission; None does not change it."""
    submitted: list[bytes] = field(default_factory=list)
    transfers: list[ServerId | None] = field(default_factory=list)

    @property
    def server(self) -> "Server":
        """Return this object, which is also the server."""
        return self

    async def submit(self, entry: bytes) -> SubmitAnswer:
        """Record the entry, change the role to `later` if it is set, and return `outcome`."""
        await trio.lowlevel.checkpoint()
        self.submitted.append(entry)
        self.role = self.later or self.role
        return SubmitAnswer(outcome=self.outcome, reason="no leader")

    async def role_changes(self) -> None:
        """Wait forever: the role does not change again."""
        await trio.sleep_forever()

    async def transfer_leadership(self, target: ServerId | None = None) -> TransferEnded:
        await trio.lowlevel.checkpoint()
        self.transfers.append(target)
        return TransferEnded(1, TransferOutcome.DONE, target)


async def order(server: Server, to: str | None) -> str:
    stage = Stage()
    signer = EntrySigner(Ed25519PrivateKey.generate(), CLUSTER_ID, stage.applied_state)
    return await order_handover(cast(Replica, server), signer, VOTERS, to, 1_000)


def test_voter_name_does_not_select_evicted_identity_but_id_does() -> None:
    voters = (*VOTERS, VoterView(4, "tcp://4", "node-2"), VoterView(5, "tcp://5", "node-2", evicted=True))
    assert [voter_named(voters, each) for each in ("node-2", "2", "4", "5")] == [4, 2, 4, 5]


@pytest.mark.parametrize(("to", "target"), [("node-2", 2), ("2", 2), (None, None)])
async def test_follower_submits_signed_order_to_hand_over(to: str | None, target: int | None) -> None:
    server = Server(later=RoleChanged(Role.FOLLOWER, TERM + 1, 2))
    assert await order(server, to) == "node-2"
    [entry] = server.submitted
    assert handover_in(entry) == Handover(TERM, target)
    assert EntryReader(CLUSTER_ID).read(entry).author is not None


@pytest.mark.parametrize(
    ("server", "to", "text"),
    [
        (Server(), "node-3", "node-3 already leads"),
        (Server(), "lima", "there are node-1, node-2, node-3"),
        (Server(outcome=SubmitOutcome.BUSY), "node-2", "did not reach the leader"),
        (Server(later=RoleChanged(Role.LEADER, TERM + 1, 1)), "node-2", "another node was elected instead: node-1"),
        (Server(), "node-2", "node-3 has the order, but still leads"),
    ],
)
async def test_failed_handover_reports_reason(autojump_clock: MockClock, server: Server, to: str, text: str) -> None:
    with pytest.raises(Refused, match=text):
        await order(server, to)


KEY = Ed25519PrivateKey.generate()
AUTHOR = node_id_of(KEY.public_key().public_bytes_raw())
MEMBER = {2: Admitted(AUTHOR)}
RETIRED = {2: Admitted(AUTHOR, standing=Standing.RETIRED)}


def client(*scopes: Scope, admitted: bool = True) -> dict[bytes, Client]:
    """Return the table of client keys: the author's key with these scopes."""
    return {AUTHOR: Client("script", KEY.public_key().public_bytes_raw(), scopes, admitted)}


def committed(entry: bytes, *, signed: bool = True) -> ProvenRecord:
    data = sign_entry(entry, KEY, CLUSTER_ID, 1) if signed else entry
    return ProvenRecord(decode(data), Author(AUTHOR, 1) if signed else None, data=data)


@pytest.mark.parametrize(
    ("entry", "signed", "admitted", "clients", "leads", "transfers_leadership"),
    [
        (Handover(TERM, 2), True, MEMBER, {}, True, True),
        (Handover(TERM, 2), True, {}, client(Scope.OPERATOR), True, True),
        (Handover(TERM, 2), False, MEMBER, {}, True, False),
        (Handover(TERM, 2), True, {}, {}, True, False),
        (Handover(TERM, 2), True, RETIRED, {}, True, False),
        (Handover(TERM, 2), True, {}, client(Scope.WEIGHTS), True, False),
        (Handover(TERM, 2), True, {}, client(Scope.OPERATOR, admitted=False), True, False),
        (Handover(TERM - 1, 2), True, MEMBER, {}, True, False),
        (Handover(TERM, 2), True, MEMBER, {}, False, False),
    ],
    ids=[
        "member", "operator key", "unsigned", "unknown author", "retired identity", "other scope",
        "removed key", "earlier term", "follower",
    ],
)  # fmt: skip
async def test_leader_executes_handover_signed_by_permitted_author(
    *,
    autojump_clock: MockClock,
    entry: Handover,
    signed: bool,
    admitted: dict[int, Admitted],
    clients: dict[bytes, Client],
    leads: bool,
    transfers_leadership: bool,
) -> None:
    server = Server(leads=leads)
    trace = EventLog("node-3", lambda: 1000)
    orders = HandoverOrders(trace, lambda server_id: f"node-{server_id}")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(orders.run, cast(Replica, server))
        orders.committed(committed(handover_entry(entry), signed=signed), admitted, clients)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert server.transfers == ([2] if transfers_leadership else [])
    assert [each.data["name"] for each in trace.recent(9)] == (["node-2"] if transfers_leadership else [])


NESTED = b'{"handover":{"term":7},"other":' + b"[" * 30_000 + b"]" * 30_000 + b"}"
"""An entry within the limit of bytes, nested so deep that its decoding fails."""


@each_case(
    "data", [b"", b'{"handover"', b'{"handover":1}', b'{"handover":{"term":0}}', b'"handover"', b"\xff" * 9, NESTED]
)
def test_other_entry_is_not_a_handover(data: bytes) -> None:
    assert handover_in(data) is None
