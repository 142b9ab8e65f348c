"""The Java I2P classes read and verify a node's messages to a router, and a node reads their messages.

The last stories use a complete Java router on loopback, without a network: its database contains a node's publication.
"""

import time
from pathlib import Path

import pytest
import trio

from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog, clock_ms
from bridge.node.router.host import HostSampler, LoopLag
from bridge.node.router.i2cp_publishing import I2cpAccess
from bridge.node.router.i2cp_router import I2cpRouter, I2cpRouterAccess
from bridge.node.router.link import Credentials, Link, Software
from bridge.node.router.router import RouterError
from bridge.wire.i2p.destination_keys import SigningKey, new_master_key
from bridge.wire.i2p.i2cp import FrameReader, decode
from bridge.wire.i2p.i2cp_messages import (
    Disconnect,
    HostReply,
    RequestVariableLeaseSet,
    SessionStatus,
    SetDate,
    Unhandled,
)
from bridge.wire.i2p.meta_lease_set import MetaLease, encode
from tests.destinations import new_demo_leaf
from tests.interop import java_i2p
from tests.interop.i2cp_streams import SESSION, expected_output, keys, master, stream

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(java_i2p.missing() is not None, reason=java_i2p.missing() or "all is there"),
]


def test_java_verifies_all_messages_of_node(tmp_path: Path) -> None:
    now_s = int(time.time())
    for key in keys(now_s).values():
        assert java_i2p.messages(tmp_path, "read", [stream(key, now_s).hex()]) == expected_output(key)


def test_java_does_not_verify_changed_message(tmp_path: Path) -> None:
    now_s = int(time.time())
    sent = stream(keys(now_s)["transient"], now_s).replace(b"Garlic Farm", b"Garlic Harm", 1)
    output = java_i2p.messages(tmp_path, "read", [sent.hex()])
    assert "CreateSession verifies=false" in output[1]


def test_node_reads_messages_of_java(tmp_path: Path) -> None:
    written = dict(line.split() for line in java_i2p.messages(tmp_path, "write", []))
    reader = FrameReader()
    found = {}
    for name, text in written.items():
        reader.feed(bytes.fromhex(text))
        frame = reader.next_frame()
        assert frame is not None
        found[name] = decode(frame)
    assert found.pop("SetDate") == SetDate(1_767_225_600_000, "0.9.64")
    for status in range(6):
        assert found.pop(f"SessionStatus{status}") == SessionStatus(SESSION, status)
    assert found.pop("HostReply0") == HostReply(SESSION, 77, 0, master().destination.encoded)
    for result in range(1, 6):
        assert found.pop(f"HostReply{result}") == HostReply(SESSION, 77, result)
    assert found.pop("RequestVariableLeaseSet") == RequestVariableLeaseSet(SESSION, 2)
    assert found.pop("Disconnect") == Disconnect("Router is shutting down")
    assert isinstance(found.pop("BandwidthLimits"), Unhandled)
    assert found == {}


# -- a complete router -------------------------------------------------------------------------------------------------


def structure(key: SigningKey, second: int) -> bytes:
    leases = (MetaLease(new_demo_leaf().hash, cost=3, ends_s=second + 900),)
    return encode(key.sign(second, leases))


async def test_java_router_stores_publication_until_node_stops(tmp_path: Path) -> None:
    now_s = int(time.time())
    owner, second_owner = new_master_key(), new_master_key()
    held = {
        owner.destination.hash: owner.sign_transient(now_s),
        second_owner.destination.hash: second_owner.as_signing_key(),
    }
    with java_i2p.loopback_router(tmp_path) as java:
        access = I2cpRouterAccess(I2cpAccess(Link("127.0.0.1", java.port), Software.JAVA))
        alarms = Alarms(EventLog("node-1", clock_ms))
        router = I2cpRouter(access, (), HostSampler(), LoopLag(), alarms, signing_key_of=held.get)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.run)
            assert (await router.local_router_status()).attached
            for later_s in (0, 1):
                for destination_hash, key in held.items():
                    published = structure(key, now_s + later_s)
                    await router.publish_meta_lease_set(destination_hash, published)
                    assert java.holds(destination_hash) == f"type=7 verifies=true {published.hex()}"
            await router.stop_publishing_meta_lease_set(owner.destination.hash)
            assert java.holds(owner.destination.hash) == "absent"
            assert java.holds(second_owner.destination.hash).startswith("type=7 verifies=true")
            assert alarms.active() == ()
            nursery.cancel_scope.cancel()


async def test_java_router_refuses_second_session_of_destination(tmp_path: Path) -> None:
    now_s = int(time.time())
    owner = new_master_key()
    key = owner.sign_transient(now_s)
    with java_i2p.loopback_router(tmp_path) as java:
        access = I2cpRouterAccess(I2cpAccess(Link("127.0.0.1", java.port), Software.JAVA))
        alarms = Alarms(EventLog("node-1", clock_ms))
        first, second = (
            I2cpRouter(access, (), HostSampler(), LoopLag(), alarms, signing_key_of=lambda _: key) for _ in range(2)
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.run)
            nursery.start_soon(second.run)
            await first.publish_meta_lease_set(owner.destination.hash, structure(key, now_s))
            with pytest.raises(RouterError, match=r"duplicate|another client"):
                await second.publish_meta_lease_set(owner.destination.hash, structure(key, now_s + 1))
            nursery.cancel_scope.cancel()


async def test_java_router_requires_its_password(tmp_path: Path) -> None:
    now_s = int(time.time())
    owner = new_master_key()
    key = owner.sign_transient(now_s)
    own_password = "a separate word"  # noqa: S105 - only for this test
    with java_i2p.loopback_router(tmp_path, password=own_password) as java:
        for credentials, refusal in (
            (None, "Authorization required"),
            (Credentials("farm", "guess"), "Authorization failed"),
            (Credentials("farm", own_password), None),
        ):
            access = I2cpRouterAccess(I2cpAccess(Link("127.0.0.1", java.port), Software.JAVA, credentials))
            alarms = Alarms(EventLog("node-1", clock_ms))
            router = I2cpRouter(access, (), HostSampler(), LoopLag(), alarms, signing_key_of=lambda _: key)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(router.run)
                if refusal is None:
                    await router.publish_meta_lease_set(owner.destination.hash, structure(key, now_s))
                    assert java.holds(owner.destination.hash).startswith("type=7 verifies=true")
                else:
                    with pytest.raises(RouterError, match=refusal):
                        await router.publish_meta_lease_set(owner.destination.hash, structure(key, now_s))
                nursery.cancel_scope.cancel()
