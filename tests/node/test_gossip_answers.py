"""Replies to an unproved address are together no larger than the datagram that caused them.

An attacker with a copied key puts a victim's address into a datagram. Each code that causes a reply is sent in small
and in ordinary form, while the node has members, updates and user messages to send. An address is proved after its node
has returned a token or the number of a ping.
"""

import os
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gossip.core.effects import Context
from gossip.core.keyring import Keyring
from gossip.core.member import Address, Incarnation, NodeId, NodeInfo
from gossip.core.messages import (
    AliveUpdate,
    JoinAck,
    JoinNak,
    JoinRedirect,
    JoinReq,
    KeyringUpdate,
    Leave,
    Message,
    Payload,
    PingRequest,
    PingResponse,
    QueryReply,
    UserMessageId,
)
from gossip.node.group import Group
from gossip.wire.codec import Code
from gossip.wire.identity import Signer
from gossip.wire.secure_codec import SECRETS_BYTES, SecureCodec
from tests.node.gossip_farm import RING, in_simulated_time, running_farm, until_all_see_all
from tests.node.gossip_network import MemoryNetwork

VICTIM = Address("127.0.0.99", 53)
SIGNER = Signer(Ed25519PrivateKey.generate())
OWN = NodeInfo(SIGNER.node_id, VICTIM, Incarnation(1, 0), capacity=8)
GENERATION = Incarnation(1, 0)


def ping(group: Group, payload: Payload, *, named: NodeId | None = None, requester: Address | None = None) -> Message:
    source = SIGNER.node_id if named is None else named
    return PingRequest(source, GENERATION, group.node_id, Incarnation(0, 0), 7, 0, requester, payload)


def questions(group: Group) -> dict[str, Message]:
    """Return every message that a node may answer, by its description."""
    message_id = UserMessageId(1, SIGNER.node_id, 1)
    peer = group.members()[0].node_id
    return {
        "ping": ping(group, Payload()),
        "ping with figures": ping(group, Payload((), 8, 1, keys_digest=b"another!")),
        "ping of a known member": ping(group, Payload((), 8, 1), named=peer),
        "ping of this node": ping(group, Payload(), named=group.node_id),
        "ping for a third address": ping(group, Payload((), 8, 1), requester=VICTIM),
        "ping with a description": ping(group, Payload((AliveUpdate(OWN),), 8, 1)),
        "response": PingResponse(group.node_id, SIGNER.node_id, GENERATION, 7, 0),
        "join": JoinReq(OWN),
        "join of an old token": JoinReq(OWN, b"t" * 24),
        "leave": Leave(OWN),
        "reply": QueryReply(message_id, SIGNER.node_id, b""),
        "keyring": KeyringUpdate(Keyring.of(b"k" * 32, label=RING.label)),
        "ack": JoinAck(OWN, (), 0, 1),
        "nak": JoinNak("swimjoin", 7115, b"t" * 24, 1),
        "redirect": JoinRedirect((VICTIM,), "swimjoin", 7118, b"", 1),
    }


_HINT: set[Code] = {Code.BROADCAST}
"""Codes without a reply: later, the node sends a few datagrams to the sender's address, limited per source."""


_NOT_REPLIES: set[int] = {Code.JOIN_REQ, Code.PING_REQUEST}
"""Codes that are not replies: a member with a new description receives a join and a probe, as every member does."""


def test_questions_cover_all_codes_with_replies() -> None:
    kinds = {"JOIN_REQ", "JOIN_ACK", "JOIN_REDIRECT", "JOIN_NAK", "PING_REQUEST", "PING_RESPONSE", "LEAVE"}
    assert {each.name for each in set(Code) - _HINT} == kinds | {"QUERY_REPLY", "KEYRING_UPDATE"}


@in_simulated_time
async def test_replies_to_unproved_address_do_not_exceed_request() -> None:
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        groups = await farm.start_many(4)
        await until_all_see_all(groups)
        await trio.sleep(5)
        groups[1].set_metadata(b"m" * 300)
        groups[0].send_event("deploy", b"e" * 300)
        await trio.sleep(0.3)
        for named, question in questions(groups[0]).items():
            datagram = SecureCodec(SIGNER, RING, os.urandom(SECRETS_BYTES)).outgoing(question, groups[0].node_id)
            before = len(network.sent)
            network.deliver(datagram, VICTIM, groups[0].info.address)
            await trio.sleep(0.01)
            answers = [
                each for _, target, each in network.sent[before:] if target == VICTIM and each[0] not in _NOT_REPLIES
            ]
            assert sum(map(len, answers)) <= len(datagram), f"{named}: {[*map(len, answers)]} to {len(datagram)}"


@in_simulated_time
async def test_unproved_ping_is_acknowledged() -> None:
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        groups = await farm.start_many(2)
        await until_all_see_all(groups)
        question = ping(groups[0], Payload((), 8, 1, keys_digest=RING.digest))
        datagram = SecureCodec(SIGNER, RING, os.urandom(SECRETS_BYTES)).outgoing(question, groups[0].node_id)
        before = len(network.sent)
        network.deliver(datagram, VICTIM, groups[0].info.address)
        await trio.sleep(0.01)
        answers = [answer for _, target, answer in network.sent[before:] if target == VICTIM]
        assert [answer[0] for answer in answers][:1] == [Code.PING_RESPONSE]


def test_planted_reflector_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this planted fault every address counts as proved, and the rule above must fail."""
    send = Context.send

    def unlimited(context: Context, *arguments: Any) -> None:
        context.unproved_sources = ()
        send(context, *arguments)

    monkeypatch.setattr(Context, "send", unlimited)
    with pytest.raises((AssertionError, BaseExceptionGroup)):
        test_replies_to_unproved_address_do_not_exceed_request()
