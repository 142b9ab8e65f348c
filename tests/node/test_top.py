"""The live view shows the farm. If the watched node ends, the view switches to another node and shows the change."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from bridge.api.control import ClusterAnswer, CommandAnswer, NodeEvicted, Refused
from bridge.api.control_routes import COMMANDS, NODES_EVICT
from bridge.api.requests import CommandRequest, ExclusionOrder, NodeRequest
from bridge.api.view import FarmView
from bridge.node.control.client import ControlError
from bridge.node.control.routes import Call
from bridge.node.control.server import ControlServer
from bridge.tui import top
from bridge.tui.state import Evict, Exclude
from bridge.tui.top import CHANGED_OVER, LiveView, carry_out, follow_leader, keep_current
from tests.node.test_control import FakeNode
from tests.operator_views import farm_view


@pytest.fixture(autouse=True)
def _short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "QUERY_INTERVAL_S", 0.01)


class Server(FakeNode):
    """A node whose reply contains its own server id."""

    async def cluster(self) -> ClusterAnswer:
        """Return the reply with this node's ids."""
        answer, own = await super().cluster(), self.current
        return replace(answer, cluster_id=own.farm.cluster_id, raft_id=own.node.raft_id)


def node(number: int) -> FakeNode:
    made = Server()
    made.current = replace(farm_view(number), alarms=())
    return made


def latest(shown: LiveView) -> FarmView | str:
    return shown.followed.reason or shown.followed.view or ""


async def until(shown: LiveView, condition: Callable[[FarmView | str], bool]) -> FarmView | str:
    with trio.fail_after(60):
        while not condition(latest(shown)):  # noqa: ASYNC110 - polls like the screen
            await trio.sleep(0.01)
    return latest(shown)


def shows(name: str) -> Callable[[FarmView | str], bool]:
    return lambda shown: isinstance(shown, FarmView) and shown.node.name == name


async def test_view_moves_to_next_node_and_stays_there(tmp_path: Path, nursery: trio.Nursery) -> None:
    sockets = [tmp_path / f"{number}.sock" for number in (1, 2)]
    view = LiveView()
    scopes = [trio.CancelScope(), trio.CancelScope()]

    async def serve_node(number: int, task_status: trio.TaskStatus[int | None] = trio.TASK_STATUS_IGNORED) -> None:
        with scopes[number - 1]:
            await ControlServer(sockets[number - 1], node(number).handlers).run(task_status=task_status)

    await nursery.start(serve_node, 1)
    await nursery.start(serve_node, 2)
    nursery.start_soon(keep_current, lambda: sockets, view)
    first = await until(view, shows("node-1"))
    assert isinstance(first, FarmView)
    assert first.alarms == ()
    scopes[0].cancel()
    second = await until(view, shows("node-2"))
    assert isinstance(second, FarmView)
    assert [alarm.kind for alarm in second.alarms] == [CHANGED_OVER]
    assert "node-2" in second.alarms[0].text
    scopes[0] = trio.CancelScope()
    nursery.start_soon(serve_node, 1)
    await trio.sleep(0.2)
    assert shows("node-2")(latest(view))
    scopes[1].cancel()
    await until(view, shows("node-1"))


async def test_reason_is_shown_until_a_node_replies(tmp_path: Path, nursery: trio.Nursery) -> None:
    socket = tmp_path / "1.sock"
    view = LiveView()
    nursery.start_soon(keep_current, lambda: [socket], view)
    await until(view, lambda shown: isinstance(shown, str) and "no node runs at" in shown)
    await nursery.start(ControlServer(socket, node(1).handlers).run)
    await until(view, shows("node-1"))


async def test_last_view_stays_when_nodes_stop_replying(tmp_path: Path, nursery: trio.Nursery) -> None:
    socket = tmp_path / "1.sock"
    view = LiveView()
    running = trio.CancelScope()

    async def serve_node() -> None:
        with running:
            await ControlServer(socket, node(1).handlers).run()

    def found() -> list[Path]:
        if running.cancel_called:
            raise ControlError("no node answers in ./farm-state")
        return [socket]

    nursery.start_soon(serve_node)
    nursery.start_soon(keep_current, found, view)
    await until(view, shows("node-1"))
    running.cancel()
    reason = await until(view, lambda shown: isinstance(shown, str))
    assert str(socket) in str(reason)
    assert view.followed.view is not None
    assert view.followed.view.node.name == "node-1"


async def test_eviction_without_new_keys_is_shown(tmp_path: Path, nursery: trio.Nursery) -> None:
    evicted = NodeEvicted(
        "11" * 8,
        2,
        0,
        "node-2",
        2,
        keys_replaced=False,
        left_out=(),
        votes_still=False,
        keys_not_replaced="every era is used up",
        client_keys=("script",),
    )

    async def evict(_: Call[NodeRequest]) -> NodeEvicted:
        return evicted

    socket = tmp_path / "1.sock"
    await nursery.start(ControlServer(socket, {**node(1).handlers, NODES_EVICT: evict}).run)
    view = LiveView(orders=[Evict("11" * 8, "node-2")])
    view.followed.address = socket
    view.ordered.set()
    nursery.start_soon(carry_out, view)
    with trio.fail_after(60):
        while view.state.notice in {"", "…"}:  # noqa: ASYNC110 - polls like the screen
            await trio.sleep(0.01)
    assert "NO KEY WAS REPLACED: every era is used up." in view.state.notice
    assert "Remove each that you do not know:\n  garlicfarm node remove-client script" in view.state.notice


async def test_exclusion_stops_at_first_refusal(tmp_path: Path, nursery: trio.Nursery) -> None:
    async def command(call: Call[CommandRequest]) -> CommandAnswer:
        order = call.body.exclusion
        assert isinstance(order, ExclusionOrder)
        if order.hash == "b":
            raise Refused(409, "not-done", "too many exclusions")
        return CommandAnswer("exclusion", 1, f"{order.hash} is excluded")

    socket = tmp_path / "1.sock"
    await nursery.start(ControlServer(socket, {**node(1).handlers, COMMANDS: command}).run)
    view = LiveView(orders=[Exclude(("a", "b", "c"), excluded=True)])
    view.followed.address = socket
    view.ordered.set()
    nursery.start_soon(carry_out, view)
    with trio.fail_after(30):
        while view.state.notice in {"", "…"}:  # noqa: ASYNC110 - polls like the screen
            await trio.sleep(0.01)
    assert view.state.notice == "a is excluded\nthe node refused: too many exclusions (2 of 3 leaves unchanged)"


async def test_failed_search_for_nodes_is_shown(nursery: trio.Nursery) -> None:
    view = LiveView()

    def none() -> list[Path]:
        raise ControlError("no node answers in ./farm-state")

    nursery.start_soon(keep_current, none, view)
    await until(view, lambda shown: shown == "no node answers in ./farm-state")


async def test_follower_lag_comes_from_leader_while_other_is_shown(tmp_path: Path, nursery: trio.Nursery) -> None:
    """`farm_view(1)` is the leader's view, and the only one with followers."""
    sockets = [tmp_path / f"{number}.sock" for number in (2, 3, 1)]
    view = LiveView()

    def has_lags(shown: FarmView | str) -> bool:
        return isinstance(shown, FarmView) and shown.node.name == "node-2" and bool(shown.raft.followers)

    leads = trio.CancelScope()

    async def lead() -> None:
        with leads:
            await ControlServer(sockets[2], node(1).handlers).run()

    for number, socket in ((2, sockets[0]), (3, sockets[1])):
        await nursery.start(ControlServer(socket, node(number).handlers).run)
    nursery.start_soon(lead)
    nursery.start_soon(keep_current, lambda: sockets, view)
    nursery.start_soon(follow_leader, lambda: sockets, view)
    found = await until(view, has_lags)
    assert isinstance(found, FarmView)
    assert found.raft.followers == farm_view(1).raft.followers
    leads.cancel()
    await until(view, lambda shown: shows("node-2")(shown) and not has_lags(shown))
