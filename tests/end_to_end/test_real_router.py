"""A node started as operators start it, with a router of kind `i2cp`: a fake router that uses the real protocol.

`tests/interop` has the same test with a Java router.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from bridge.node.security.key_files import save_farm_key, save_signing_key, write_private_file
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.i2p.meta_lease_set import decode, verify
from bridge.wire.keys.farm_key import new_farm_key
from tests.destinations import new_demo_leaf
from tests.end_to_end.farm import Node, wait_until
from tests.end_to_end.settings import free_port
from tests.node import fake_i2cp_router
from tests.node.fake_i2cp_router import FakeRouter
from tests.processes import END_S

PASSWORD = "a-word-that-is-nowhere-else"  # noqa: S105 - of a fake router
TIMEOUT_S = 60.0


@contextmanager
def listening(router: FakeRouter) -> Iterator[int]:
    """Run the router on loopback in a thread; yield its port."""
    ports: list[int] = []
    ready, stop, token = threading.Event(), trio.Event(), []

    async def listen() -> None:
        async with trio.open_nursery() as nursery:
            serve = partial(trio.serve_tcp, router.serve, 0, host="127.0.0.1")
            listeners: list[trio.SocketListener] = await nursery.start(serve)
            ports.append(listeners[0].socket.getsockname()[1])
            token.append(trio.lowlevel.current_trio_token())
            ready.set()
            await stop.wait()
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(listen,))
    thread.start()
    try:
        assert ready.wait(60)
        yield ports[0]
    finally:
        token[0].run_sync_soon(stop.set)
        thread.join(END_S)


def test_node_publishes_through_router_without_storing_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_i2cp_router, "clock_now_ms", lambda: int(time.time() * 1000))
    master, leaf = new_master_key(), new_demo_leaf()
    save_farm_key(tmp_path / "farm.key", new_farm_key(1))
    save_signing_key(tmp_path / "signing.key", master.sign_transient(int(time.time())))
    write_private_file(tmp_path / "word", f"{PASSWORD}\n")
    router = FakeRouter(password=PASSWORD, known={leaf.hash: leaf})
    with listening(router) as port:
        (tmp_path / "node.toml").write_text(
            f"""
name = "site-a"
state_dir = "state"
farm_key = "farm.key"
[gossip]
bind = "127.0.0.1:{free_port(socket.SOCK_DGRAM)}"
broadcast = "off"
timing = "local"
[consensus]
bind = "127.0.0.1:{free_port(socket.SOCK_STREAM)}"
timing = "local"
segment_bytes = 4194304
admit = "all"
[publishing]
signing_key = "signing.key"
reporting_period_ms = 1000
[router]
kind = "i2cp"
i2cp = "127.0.0.1:{port}"
i2cp_username = "farm"
i2cp_password_file = "word"
[[leaf]]
destination = "{leaf.base64}"
"""
        )
        node = Node(tmp_path / "node.toml").start()
        try:
            wait_until(lambda: router.structures, TIMEOUT_S, "the router receives a structure", node.log_file.read_text)
            assert node.stop() == 0
            # The node has sent the message, but the router's thread may not have read it yet.
            wait_until(
                lambda: "the farm's node is done" in router.disconnects,
                TIMEOUT_S,
                "the router receives the disconnect message",
            )
        finally:
            node.kill()
    structure = decode(router.structures[-1])
    assert verify(structure).holds
    assert structure.destination == master.destination
    assert [lease.destination_hash for lease in structure.leases] == [leaf.hash]
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "word"]
    assert len(written) > 5
    assert [path for path in written if PASSWORD.encode() in path.read_bytes()] == []
