"""The query `view` over gossip: replies of all nodes, one query for many readers, the last reply of a lost node."""

import pytest
import trio
from msgspec.structs import replace

from bridge.api.control import Refused
from bridge.api.view import FarmView
from bridge.node.membership.perspectives import FRESH_S, OwnPerspective, Perspectives
from bridge.wire.membership.short_view import VIEW_QUERY
from tests.node.gossip_farm import in_simulated_time
from tests.node.test_user_messages import Node, two_nodes
from tests.operator_views import NOW_MS, farm_view


def view_of(number: int, node: Node, other: Node) -> FarmView:
    view = farm_view(number, servers=2)
    ids = [node.group.node_id.hex(), other.group.node_id.hex()]
    first, second = sorted(view.members, key=lambda each: not each.is_self)
    return replace(view, members=(replace(first, node_id=ids[0]), replace(second, node_id=ids[1])))


def answering(node: Node, view: FarmView, applied_index: int = 0) -> OwnPerspective:
    own = OwnPerspective(lambda: applied_index)
    own.take(view)
    node.messages.answers = {VIEW_QUERY: own.answer}
    node.messages.quiet = (VIEW_QUERY,)
    return own


@in_simulated_time
async def test_perspectives_of_all_nodes_are_returned() -> None:
    async with two_nodes() as (oslo, kyoto):
        answering(kyoto, replace(view_of(2, kyoto, oslo), raft=replace(farm_view(2).raft, term=7)))
        view = view_of(1, oslo, kyoto)
        perspectives = Perspectives(answering(oslo, view), oslo.messages, lambda: NOW_MS, lambda: view)
        found = await perspectives.all()
        assert [(each.name, each.answered, each.term) for each in found.nodes] == [
            ("node-1", True, 3),
            ("node-2", True, 7),
        ]
        assert not [event for node in (oslo, kyoto) for event in node.trace_events() if event.kind == "query"]


@in_simulated_time
async def test_perspective_has_commit_index_of_the_query() -> None:
    """The last view of a node may be ten seconds old."""
    async with two_nodes() as (oslo, kyoto):
        later = farm_view(2).raft.commit_index + 100
        answering(kyoto, view_of(2, kyoto, oslo), later)
        view = view_of(1, oslo, kyoto)
        found = await Perspectives(answering(oslo, view), oslo.messages, lambda: NOW_MS, lambda: view).all()
        assert [each.commit_index for each in found.nodes] == [view.raft.commit_index, later]


@in_simulated_time
async def test_perspectives_have_names_of_a_view_after_the_query() -> None:
    async with two_nodes() as (oslo, kyoto):
        view = view_of(1, oslo, kyoto)
        unfounded = replace(view, members=(), raft=replace(view.raft, voters=(), learners=()))
        answering(kyoto, view_of(2, kyoto, oslo))
        perspectives = Perspectives(answering(oslo, unfounded), oslo.messages, lambda: NOW_MS, lambda: view)
        (reply,) = [each for each in (await perspectives.all()).nodes if each.name == "node-2"]
        assert set(reply.members) == {"node-1", "node-2"}


@in_simulated_time
async def test_perspectives_of_many_readers_are_one_query() -> None:
    async with two_nodes() as (oslo, kyoto):
        view = view_of(1, oslo, kyoto)
        own, queries = answering(oslo, view), [0]

        def counted() -> str:
            queries[0] += 1
            return own.answer()

        kyoto.messages.answers = {VIEW_QUERY: counted}
        perspectives = Perspectives(own, oslo.messages, lambda: NOW_MS, lambda: view)
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(perspectives.all)
        assert queries == [1]
        await trio.sleep(FRESH_S)
        await perspectives.all()
        assert queries == [2]


@in_simulated_time
async def test_perspectives_keep_last_reply_of_lost_node() -> None:
    async with two_nodes() as (oslo, kyoto):
        answering(kyoto, view_of(2, kyoto, oslo))
        view = view_of(1, oslo, kyoto)
        perspectives = Perspectives(answering(oslo, view), oslo.messages, lambda: NOW_MS, lambda: view)
        await perspectives.all()
        kyoto.messages.answers = {VIEW_QUERY: lambda: "\x1b]0;hostile\x07"}
        await trio.sleep(60)
        lost = (await perspectives.all()).nodes[1]
        assert (lost.answered, lost.verdict is not None) == (False, True)
        assert lost.age_ms is not None
        assert 60_000 <= lost.age_ms < 70_000


@in_simulated_time
async def test_perspectives_before_first_view_are_refused() -> None:
    async with two_nodes() as (oslo, kyoto):
        del kyoto
        with pytest.raises(Refused, match="has not made its first view"):
            await Perspectives(OwnPerspective(), oslo.messages, lambda: NOW_MS, lambda: farm_view(1)).all()
