"""User events and queries of operators: delivery to other nodes, their replies, and refused messages."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

import gossip
from bridge.api.control import QueryAnswerView, Refused
from bridge.api.trace import TraceEvent
from bridge.core.formation.member import NodeMetadata, RoleHint
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.membership.founding_clocks import CLOCK_QUERY, watch_founding_clocks
from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.membership.user_messages import UserMessages
from bridge.wire.membership.metadata import encode_metadata
from gossip import NodeId, QueryReceived, UserEventReceived
from gossip.core.effects import QueryAnswered
from gossip.node.requests import REQUESTS_BURST
from tests.node.gossip_farm import RING, in_simulated_time
from tests.node.gossip_network import MemoryNetwork

HOME = "127.0.0.1"


def metadata(name: str) -> bytes:
    return encode_metadata(NodeMetadata("demo", name, RoleHint.OBSERVER, None, f"tcp://{HOME}:7669", bytes(32)))


class Node:
    """A node with gossip and user messages only."""

    def __init__(self, group: gossip.Group, name: str) -> None:
        self.group = group
        self.clock_ms = 5_000_000_000_000
        self.trace = EventLog(name, lambda: 0)
        self.directory = MemberDirectory(group.node_id, name, group.members)
        self.messages = UserMessages(
            provider=group,
            member_directory=self.directory,
            trace=self.trace,
            answers={"ping": lambda: name, "version": lambda: "0.1.0", CLOCK_QUERY: lambda: str(self.clock_ms)},
            quiet=(CLOCK_QUERY,),
        )

    async def run(self) -> None:
        """Process the events of gossip until canceled."""
        async for numbered in self.group.events():
            self.directory.refresh()
            match numbered.event:
                case UserEventReceived(event):
                    self.messages.event_received(event)
                case QueryReceived(query):
                    self.messages.query_received(query)
                case _:
                    pass

    def trace_events(self) -> list[TraceEvent]:
        return list(self.trace.read(1).events)

    async def until_met(self, other: "Node") -> None:
        """Wait until this node has discovered the other one."""
        with trio.fail_after(60):
            async for _ in self.group.events():
                self.directory.refresh()
                if other.group.node_id in self.directory.reachable():
                    return


def seed_of(group: gossip.Group) -> tuple[str]:
    return (f"{group.info.address.host}:{group.info.address.port}",)


@asynccontextmanager
async def two_nodes() -> AsyncIterator[tuple[Node, Node]]:
    network = MemoryNetwork()
    async with (
        gossip.open_group(HOME, key=RING, metadata=metadata("oslo"), network=network) as first,
        gossip.open_group(HOME, key=RING, metadata=metadata("kyoto"), seeds=seed_of(first), network=network) as second,
        trio.open_nursery() as nursery,
    ):
        oslo, kyoto = Node(first, "oslo"), Node(second, "kyoto")
        nursery.start_soon(oslo.run)
        nursery.start_soon(kyoto.run)
        await oslo.until_met(kyoto)
        await kyoto.until_met(oslo)
        yield oslo, kyoto
        nursery.cancel_scope.cancel()


@in_simulated_time
async def test_clocks_are_compared_before_founding() -> None:
    async with two_nodes() as (oslo, kyoto):
        alarms, founded = Alarms(oslo.trace), [False]

        async def until(*, raised: bool) -> None:
            with trio.fail_after(60):
                while bool(alarms.active()) is not raised:  # noqa: ASYNC110 - polls like an operator
                    await trio.sleep(0.1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                watch_founding_clocks, oslo.group, oslo.directory, "oslo", alarms, lambda: founded[0], lambda: 1_000
            )
            await until(raised=True)
            assert [each.kind for each in alarms.active()] == ["clock"]
            assert "kyoto" in alarms.active()[0].text
            kyoto.clock_ms = 1_500
            await until(raised=False)
            founded[0] = True
        assert kyoto.trace_events() == []


@in_simulated_time
async def test_user_event_is_in_every_trace_with_sender_name() -> None:
    async with two_nodes() as (oslo, kyoto):
        assert oslo.messages.send("deploy", "version\x1b[2J 2") == 1
        with trio.fail_after(60):
            while not kyoto.trace_events():  # noqa: ASYNC110 - polls like an operator
                await trio.sleep(0.1)
        for node in (oslo, kyoto):
            [event] = node.trace_events()
            assert event.kind == "user-event"
            assert event.data == {"name": "deploy", "payload": "version\\x1b[2J 2", "from": "oslo"}


@in_simulated_time
async def test_known_query_is_answered_by_all_nodes() -> None:
    async with two_nodes() as (oslo, kyoto):
        before = trio.current_time()
        answer = await oslo.messages.ask("ping", "", 20.0)
        assert trio.current_time() - before < 10
        assert answer.answers == (
            QueryAnswerView("kyoto", kyoto.group.node_id.hex(), "kyoto"),
            QueryAnswerView("oslo", oslo.group.node_id.hex(), "oslo"),
        )
        assert answer.silent == ()
        assert [each.payload for each in (await kyoto.messages.ask("version", "", 20.0)).answers] == ["0.1.0", "0.1.0"]
        assert kyoto.trace_events()[0].data == {"name": "ping", "payload": "", "from": "oslo", "answered": True}


@in_simulated_time
async def test_unknown_query_is_traced_without_answer() -> None:
    async with two_nodes() as (oslo, kyoto):
        answer = await oslo.messages.ask("weather", "now", 5.0)
        assert (answer.answers, answer.silent) == ((), ("kyoto",))
        for node in (oslo, kyoto):
            [event] = node.trace_events()
            assert (event.kind, event.data["answered"], event.data["from"]) == ("query", False, "oslo")


@in_simulated_time
async def test_message_that_gossip_cannot_carry_is_refused() -> None:
    async with gossip.open_group(HOME, key=RING, network=MemoryNetwork()) as group:
        messages = Node(group, "oslo").messages
        for name, payload, reason in (
            ("", "", "the name of .* has 1 to 32 characters, not 0"),
            ("x" * 33, "", "the name of .* has 1 to 32 characters, not 33"),
            ("red\x1b[0m", "", r"the name of .* printable characters only: 'red\\x1b\[0m' has others"),
            ("x", "ü" * 257, "the payload of .* at most 512 bytes, not 514"),
            ("gossip:keys", "", "are for gossip itself"),
        ):
            with pytest.raises(Refused, match=reason) as refused:
                messages.send(name, payload)
            assert (refused.value.status, refused.value.code) == (400, "bad-request")
        for _ in range(int(REQUESTS_BURST)):
            messages.send("x", "")
        with pytest.raises(Refused, match="per second") as refused:
            messages.send("x", "")
        assert refused.value.status == 503


async def test_single_node_has_its_own_answer_immediately() -> None:
    async with gossip.open_group(HOME, key=RING, network=MemoryNetwork()) as group:
        with trio.fail_after(60):
            answer = await Node(group, "oslo").messages.ask("ping", "", 20.0)
    assert [(each.node, each.payload) for each in answer.answers] == [("oslo", "oslo")]


@in_simulated_time
async def test_query_is_traced_before_answers_of_members() -> None:
    async def send_query(oslo: Node) -> None:
        answer = await oslo.messages.ask("weather", "", 5.0)
        assert [(each.node, each.payload) for each in answer.answers] == [("kyoto", "sunny")]

    async with two_nodes() as (oslo, kyoto), trio.open_nursery() as nursery:
        nursery.start_soon(send_query, oslo)
        await trio.sleep(1)
        assert [each.kind for each in oslo.trace_events()] == ["query"]
        for responder in (NodeId(bytes([7]) * 16), kyoto.group.node_id):
            assert oslo.group._queries.forward_reply(QueryAnswered(1, responder, b"sunny"))


async def test_message_without_gossip_is_refused() -> None:
    directory = cast("MemberDirectory", SimpleNamespace(reachable=frozenset))
    messages = UserMessages(
        provider=cast("Any", SimpleNamespace()),
        member_directory=directory,
        trace=EventLog("oslo", lambda: 0),
        answers={},
    )
    with pytest.raises(Refused, match="gossip does not carry messages"):
        messages.send("x", "")
    with pytest.raises(Refused, match="gossip does not carry messages"):
        await messages.ask("x", "", 1.0)
