"""The live view shows the farm: when the node that it asks dies, it asks another one, and says so."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from bridge.api.view import FarmView
from bridge.node.control.client import ControlError
from bridge.node.control.server import ControlServer
from bridge.tui import top
from bridge.tui.top import CHANGED_OVER, keep_asking
from tests.node.test_control import FakeNode
from tests.operator_views import farm_view


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "ASK_EVERY_S", 0.01)


def node(number: int) -> FakeNode:
    """One that sees the farm."""
    made = FakeNode()
    made.current = replace(farm_view(number), alarms=())
    return made


async def until(latest: list[FarmView | str], holds: Callable[[FarmView | str], bool]) -> FarmView | str:
    """The first of what is latest of which this holds."""
    with trio.fail_after(10):
        while not holds(latest[0]):  # noqa: ASYNC110 - a list is looked at, as the screen does
            await trio.sleep(0.01)
    return latest[0]


def shows(name: str) -> Callable[[FarmView | str], bool]:
    return lambda shown: isinstance(shown, FarmView) and shown.node.name == name


async def test_a_node_that_dies_hands_the_view_on_and_one_that_comes_back_does_not_take_it(tmp_path: Path) -> None:
    sockets = [tmp_path / f"{number}.sock" for number in (1, 2)]
    latest: list[FarmView | str] = [""]
    async with trio.open_nursery() as nursery:
        lives = [trio.CancelScope(), trio.CancelScope()]

        async def live(number: int) -> None:
            with lives[number - 1]:
                await ControlServer(sockets[number - 1], node(number)).run()

        nursery.start_soon(live, 1)
        nursery.start_soon(live, 2)
        nursery.start_soon(keep_asking, lambda: sockets, latest)
        first = await until(latest, shows("node-1"))
        assert isinstance(first, FarmView)
        assert first.alarms == ()
        lives[0].cancel()
        second = await until(latest, shows("node-2"))
        assert isinstance(second, FarmView)
        assert [alarm.kind for alarm in second.alarms] == [CHANGED_OVER]
        assert "node-2" in second.alarms[0].text
        lives[0] = trio.CancelScope()
        nursery.start_soon(live, 1)
        await trio.sleep(0.2)
        assert shows("node-2")(latest[0])
        lives[1].cancel()
        await until(latest, shows("node-1"))
        nursery.cancel_scope.cancel()


async def test_where_no_node_answers_the_reason_is_shown_until_one_does(tmp_path: Path) -> None:
    socket = tmp_path / "1.sock"
    latest: list[FarmView | str] = [""]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_asking, lambda: [socket], latest)
        await until(latest, lambda shown: isinstance(shown, str) and "no node runs at" in shown)
        await nursery.start(ControlServer(socket, node(1)).run)
        await until(latest, shows("node-1"))
        nursery.cancel_scope.cancel()


async def test_that_no_node_can_be_found_is_a_reason_as_well() -> None:
    latest: list[FarmView | str] = [""]

    def none() -> list[Path]:
        raise ControlError("no node answers in ./farm-state")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_asking, none, latest)
        await until(latest, lambda shown: shown == "no node answers in ./farm-state")
        nursery.cancel_scope.cancel()
