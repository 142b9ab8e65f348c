"""The checks of `doctor` for the router: over real connections, without publications or sessions."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from bridge.api.outputs import Check, CheckResult
from bridge.node.doctor.checks import known_causes
from bridge.node.doctor.router_checks import router_checks, sam_check
from bridge.node.router.link import Link, Software
from bridge.node.router.router import ServedLeaf
from bridge.node.security.key_files import save_signing_key, write_private_file
from bridge.node.settings.router import ControlUrl, FileRouterSettings, I2cpRouterSettings
from bridge.sam.loopback import LoopbackNetwork, serve_loopback_bridge
from bridge.wire.i2p.destination_keys import new_master_key
from tests.destinations import new_demo_leaf
from tests.node import fake_i2cp_router
from tests.node.fake_i2cp_router import NOW_S, FakeRouter
from tests.node.fake_i2pcontrol import FakeControl
from tests.processes import END_S


@contextmanager
def behind_ports(router: FakeRouter, control: FakeControl) -> Iterator[tuple[int, int]]:
    """Serve both on separate ports in a separate thread: `doctor` is not part of a running node."""
    ports: list[int] = []
    ready, stop = threading.Event(), trio.Event()
    token: list[trio.lowlevel.TrioToken] = []

    async def listen() -> None:
        async with trio.open_nursery() as nursery:
            for serve in (router.serve, control.serve):
                listening = partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
                listeners: list[trio.SocketListener] = await nursery.start(listening)
                ports.append(listeners[0].socket.getsockname()[1])
            token.append(trio.lowlevel.current_trio_token())
            ready.set()
            await stop.wait()
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(listen,))
    thread.start()
    try:
        assert ready.wait(60)
        yield ports[0], ports[1]
    finally:
        token[0].run_sync_soon(stop.set)
        thread.join(END_S)


def checks_of_router(
    tmp_path: Path,
    router: FakeRouter,
    control: FakeControl | None = None,
    software: Software = Software.JAVA,
    leaves: tuple[ServedLeaf, ...] = (),
) -> dict[str, Check]:
    word = tmp_path / "word"
    if not word.exists():
        write_private_file(word, "word\n")
    with behind_ports(router, control or FakeControl()) as (i2cp_port, control_port):
        url = ControlUrl(Link("127.0.0.1", control_port), is_encrypted=False, path="/jsonrpc/")
        settings = I2cpRouterSettings(
            software=software,
            i2cp=Link("127.0.0.1", i2cp_port),
            i2pcontrol=None if control is None else url,
            i2pcontrol_password_file=None if control is None else word,
        )
        found = router_checks(settings, list(tmp_path.glob("*.key")), leaves)
    return {check.name: check for check in found}


@pytest.fixture(autouse=True)
def same_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clocks of both sides."""
    monkeypatch.setattr(fake_i2cp_router, "clock_now_ms", lambda: NOW_S * 1000)
    monkeypatch.setattr("bridge.node.router.i2cp_connection.clock_ms", lambda: NOW_S * 1000)


def test_replying_router_with_status_is_ok(tmp_path: Path) -> None:
    found = checks_of_router(tmp_path, FakeRouter(), FakeControl())
    assert {name: check.result for name, check in found.items()} == {
        "router": CheckResult.OK,
        "router status": CheckResult.OK,
        "router sam": CheckResult.OK,
    }
    assert "router.sam is off" in found["router sam"].text
    assert "answers, I2CP 0.9.64; its clock differs by" in found["router"].text
    assert "version 2.10.0, up for 60 min, status OK" in found["router status"].text


def test_router_without_i2pcontrol_is_still_checked(tmp_path: Path) -> None:
    found = checks_of_router(tmp_path, FakeRouter())
    assert found["router"].result is CheckResult.OK
    assert found["router status"].result is CheckResult.WARNING


async def test_replying_sam_bridge_is_ok(nursery: trio.Nursery) -> None:
    bridge = await nursery.start(serve_loopback_bridge, LoopbackNetwork())
    check = await sam_check(Link(bridge.host, bridge.port))
    assert check.result is CheckResult.OK
    assert f"{bridge} answers" in check.text


async def test_router_without_sam_bridge_is_a_warning() -> None:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    check = await sam_check(Link("127.0.0.1", port))
    assert check.result is CheckResult.WARNING
    assert f"127.0.0.1:{port}" in check.text
    assert '"off"' in check.action


def test_wrong_router_clock_is_a_problem(tmp_path: Path) -> None:
    found = checks_of_router(tmp_path, FakeRouter(clock_offset_ms=90_000))
    assert found["router"].result is CheckResult.PROBLEM
    assert "differs by +90.0 s" in found["router"].text


def test_other_protocol_is_a_problem(tmp_path: Path) -> None:
    found = checks_of_router(tmp_path, FakeRouter(garbage=b"220 mail.example ESMTP\r\n"))
    assert found["router"].result is CheckResult.PROBLEM
    assert "does not speak I2CP" in found["router"].text


def test_wrong_password_is_a_problem_and_stays_hidden(tmp_path: Path) -> None:
    write_private_file(tmp_path / "word", "guess\n")
    found = checks_of_router(tmp_path, FakeRouter(), FakeControl())
    assert found["router status"].result is CheckResult.PROBLEM
    assert "refuses the password" in found["router status"].text
    assert "guess" not in found["router status"].text


def test_old_transient_key_with_i2pd_is_a_problem(tmp_path: Path) -> None:
    key = new_master_key().sign_transient(NOW_S)
    save_signing_key(tmp_path / "signing.key", replace(key, session=None))
    check = checks_of_router(tmp_path, FakeRouter(), software=Software.I2PD)["router key"]
    assert check.result is CheckResult.PROBLEM
    assert "keys offline" in check.text
    assert "router key" not in checks_of_router(tmp_path, FakeRouter())
    (tmp_path / "signing.key").unlink()
    save_signing_key(tmp_path / "signing.key", key)
    assert "router key" not in checks_of_router(tmp_path, FakeRouter(), software=Software.I2PD)


def test_i2pd_configured_as_java_is_a_problem(tmp_path: Path) -> None:
    check = checks_of_router(tmp_path, FakeRouter(is_i2pd=True))["router"]
    assert check.result is CheckResult.PROBLEM
    assert 'and the settings have software = "java"' in check.text


def test_router_with_own_version_as_i2pd_is_a_warning(tmp_path: Path) -> None:
    check = checks_of_router(tmp_path, FakeRouter(), software=Software.I2PD)["router"]
    assert check.result is CheckResult.WARNING
    assert "it does not reply like i2pd" in check.text


def test_demonstration_key_is_a_problem(tmp_path: Path) -> None:
    save_signing_key(tmp_path / "signing.key", new_master_key(demo=True).sign_transient(NOW_S))
    check = checks_of_router(tmp_path, FakeRouter())["router key"]
    assert check.result is CheckResult.PROBLEM
    assert "demonstration" in check.text


def test_file_router_is_a_warning(tmp_path: Path) -> None:
    [check] = router_checks(FileRouterSettings(directory=tmp_path), [])
    assert check.result is CheckResult.WARNING


def test_leaf_checks_name_their_faults(tmp_path: Path) -> None:
    """One leaf is found, one is not found, and the service of one is down."""
    found, unknown, down = (new_demo_leaf() for _ in range(3))
    router = FakeRouter(known={each.hash: each for each in (found, down)})
    leaves = (ServedLeaf(found), ServedLeaf(unknown), ServedLeaf(down, ("127.0.0.1", 1)))
    lines = [
        check for name, check in checks_of_router(tmp_path, router, leaves=leaves).items() if name.startswith("leaf ")
    ]
    assert [each.result for each in lines] == [CheckResult.OK, CheckResult.PROBLEM, CheckResult.PROBLEM]
    assert "its lease set is not found" in lines[1].text
    assert "server tunnel" in lines[1].action
    assert "its service does not answer the probe" in lines[2].text


def test_closed_ports_of_running_router_have_own_causes(tmp_path: Path) -> None:
    """If the status interface replies, or another program has the port of SAM, the router is not the cause."""
    write_private_file(tmp_path / "word", "word\n")
    closed = Link("127.0.0.1", 1)
    with behind_ports(FakeRouter(garbage=b"220 mail.example ESMTP\r\n"), FakeControl()) as (other_port, control_port):
        for control, sam, causes in (
            (Link("127.0.0.1", control_port), closed, {"router status": "", "router sam": ""}),
            (closed, Link("127.0.0.1", other_port), {"router status": "", "router sam": ""}),
            (closed, closed, {"router status": "router", "router sam": "router"}),
        ):
            settings = I2cpRouterSettings(
                i2cp=closed,
                i2pcontrol=ControlUrl(control, is_encrypted=False, path="/jsonrpc/"),
                i2pcontrol_password_file=tmp_path / "word",
                sam=sam,
            )
            _, *services = router_checks(settings, [])
            assert {each.name: each.cause for each in services} == causes


def test_stopped_router_is_one_problem(tmp_path: Path) -> None:
    """The router is the cause of its failed services and leaves, but not of a leaf's unresponsive service."""
    write_private_file(tmp_path / "word", "word\n")
    closed = Link("127.0.0.1", 1)
    settings = I2cpRouterSettings(
        i2cp=closed,
        i2pcontrol=ControlUrl(closed, is_encrypted=False),
        i2pcontrol_password_file=tmp_path / "word",
        sam=closed,
    )
    leaf, served = new_demo_leaf(), ServedLeaf(new_demo_leaf(), ("127.0.0.1", 1))
    router, *others, alone, broken = router_checks(settings, [], (ServedLeaf(leaf), served))
    assert (router.name, router.result, router.cause) == ("router", CheckResult.PROBLEM, "")
    assert {each.name: each.cause for each in (*others, alone)} == {
        "router status": "router",
        "router sam": "router",
        alone.name: "router",
    }
    assert "no router answers" in alone.text
    assert alone.action.startswith("follow the line `router` above"), "doctor does not advise to run doctor"
    assert (broken.cause, "its service does not answer the probe" in broken.text) == ("", True)
    assert known_causes([alone, broken, *others, router]) == [broken, router, alone, *others]
    assert [each.cause for each in known_causes([replace(router, result=CheckResult.OK), alone])] == ["", ""]
