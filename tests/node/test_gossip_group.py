"""`gossip.open_group`: the interface for applications."""

import subprocess
import sys

import pytest
import trio

import gossip
from gossip.core.events import KeyringChanged
from gossip.core.member import Address, NodeId
from gossip.core.messages import DropReason, Query, UserEvent, UserMessageId
from gossip.core.swim import Swim
from gossip.node.event_ring import EventRing, Numbered
from gossip.node.group import GroupEvent
from gossip.node.limits import Loss
from gossip.node.requests import REQUESTS_BURST, Requests
from gossip.wire.secure_codec import SecureCodec
from tests.node.gossip_farm import RING, in_simulated_time
from tests.node.gossip_network import MemoryNetwork
from tests.node.unexpected_errors import fail_first, tracebacks

HOME = "127.0.0.1"


def seed_of(group: gossip.Group) -> tuple[str]:
    address = group.info.address
    return (f"{address.host}:{address.port}",)


async def until_member(group: gossip.Group, other: gossip.Group, status: gossip.Status = gossip.Status.ALIVE) -> None:
    """Wait until a group lists another node with this status."""
    with trio.fail_after(60):
        async for event in group.events():
            what = event.event
            if isinstance(what, gossip.MembershipChanged) and (what.info.node_id, what.status) == (
                other.node_id,
                status,
            ):
                return


@in_simulated_time
async def test_members_exchange_metadata_broadcasts_or_queries() -> None:
    network = MemoryNetwork()
    async with gossip.open_group(HOME, key=RING, network=network) as alice:
        async with gossip.open_group(HOME, key=RING, seeds=seed_of(alice), metadata=b"blue", network=network) as boris:
            await until_member(alice, boris)
            await until_member(boris, alice)
            assert [(each.node_id, each.info.metadata) for each in alice.members()] == [(boris.node_id, b"blue")]
            boris.set_metadata(b"green")
            boris.send_event("deploy", b"version 2")
            event = await next_broadcast(alice)
            assert (event.name, event.body) == ("deploy", b"version 2")
            assert alice.members()[0].info.metadata == b"green"

            async with trio.open_nursery() as nursery:
                nursery.start_soon(_answer_one, boris, b"pong")
                async with alice.query("ping", b"ping", timeout_s=5) as answers:
                    assert [(each.responder, each.body) async for each in answers] == [(boris.node_id, b"pong")]
            await boris.leave()
        await until_member(alice, boris, gossip.Status.LEFT)


@pytest.mark.parametrize(
    "failing", [(SecureCodec, "incoming"), (Swim, "_receive"), (SecureCodec, "outgoing")], ids=lambda each: each[1]
)
@in_simulated_time
async def test_unexpected_errors_about_datagrams_only_drop_them(
    failing: tuple[type, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network = MemoryNetwork()
    fail_first(monkeypatch, *failing, times=3)
    async with (
        gossip.open_group(HOME, key=RING, network=network) as alice,
        gossip.open_group(HOME, key=RING, seeds=seed_of(alice), network=network) as boris,
    ):
        await until_member(alice, boris)
        await until_member(boris, alice)
        dropped = [each.describe().wire.dropped.get(Loss.FAILED, 0) for each in (alice, boris)]
    assert sum(dropped) == tracebacks(caplog) == 3


async def next_broadcast(group: gossip.Group) -> UserEvent:
    """Return the first broadcast that a group receives."""
    with trio.fail_after(60):
        async for event in group.events():
            if isinstance(event.event, gossip.UserEventReceived):
                return event.event.user_event
    raise AssertionError("the group ended")


async def _answer_one(group: gossip.Group, body: bytes) -> None:
    async for event in group.events(after=group.cursor):
        if isinstance(event.event, gossip.QueryReceived):
            group.answer(event.event.query, body)
            return


@in_simulated_time
async def test_readers_resume_after_cursor_with_equal_events() -> None:
    network = MemoryNetwork()
    async with gossip.open_group(HOME, key=RING, network=network) as alice:
        async with gossip.open_group(HOME, key=RING, seeds=seed_of(alice), network=network) as boris:
            await until_member(alice, boris)
            cursor = alice.cursor
            boris.set_metadata(b"one")
            boris.send_event("two")
            await trio.sleep(5)
        both = [await stored_events(alice, cursor), await stored_events(alice, cursor)]
        assert both[0] == both[1]
        assert [event.cursor for event in both[0]] == list(range(cursor + 1, alice.cursor + 1))
        kinds = {type(event.event) for event in both[0]}
        assert kinds == {gossip.MembershipChanged, gossip.UserEventReceived}
        with pytest.raises(ValueError, match="cursor"):
            await anext(alice.events(after=alice.cursor + 1))


async def stored_events(group: gossip.Group, cursor: int) -> list[Numbered[GroupEvent]]:
    reader = group.events(after=cursor)
    return [await anext(reader) for _ in range(group.cursor - cursor)]


async def test_events_lost_to_slow_reader_are_counted() -> None:
    ring: EventRing[int] = EventRing(3)
    for number in range(1, 8):
        ring.append(number)
    ring.close()
    seen = [(event.cursor, event.event, event.lost) async for event in ring.after(1)]
    assert seen == [(5, 5, 3), (6, 6, 0), (7, 7, 0)]
    assert [event.cursor async for event in ring.after(7)] == []
    assert ring.lost == 3


async def test_user_event_flood_keeps_other_events_in_ring() -> None:
    ring: EventRing[int | str] = EventRing(3)
    for event in ("alarm", 1, 2, 3, "changed", 4, 5, 6, 7):
        ring.append(event)
    ring.close()
    seen = [(event.cursor, event.event, event.lost) async for event in ring.after(0)]
    assert seen == [(1, "alarm", 0), (5, "changed", 3), (7, 5, 1), (8, 6, 0), (9, 7, 0)]
    assert ring.lost == 4


@in_simulated_time
async def test_events_end_with_group() -> None:
    async with trio.open_nursery() as nursery:
        ended = trio.Event()
        async with gossip.open_group(HOME, key=RING, network=MemoryNetwork()) as group:
            nursery.start_soon(_read_to_the_end, group, ended)
            await trio.sleep(1)
            assert not ended.is_set()
        with trio.fail_after(60):
            await ended.wait()


async def _read_to_the_end(group: gossip.Group, ended: trio.Event) -> None:
    async for _ in group.events():
        pass
    ended.set()


@in_simulated_time
async def test_user_events_over_rate_or_size_limit_are_refused() -> None:
    async with gossip.open_group(HOME, key=RING, network=MemoryNetwork()) as group:
        with pytest.raises(ValueError, match="512 bytes"):
            group.send_event("long", bytes(513))
        for _ in range(int(REQUESTS_BURST)):
            group.send_event("event")
        with pytest.raises(gossip.BusyError, match="this message was not sent"):
            group.send_event("event")
        await trio.sleep(1)
        group.send_event("event")


@in_simulated_time
async def test_replies_do_not_use_rate_of_own_messages() -> None:
    asker = NodeId(bytes(16))
    async with gossip.open_group(HOME, key=RING, network=MemoryNetwork()) as group:
        queries = [Query(UserMessageId(time, asker, 1), "ping", b"", Address(HOME, 1), 5_000) for time in range(1, 42)]
        for query in queries[:-1]:
            group.answer(query, b"pong")
        with pytest.raises(gossip.BusyError, match="20 answers per second"):
            group.answer(queries[-1], b"pong")
        for _ in range(int(REQUESTS_BURST)):
            group.send_event("event")
        assert group.keyring is not None
        await group.change_keyring(group.keyring.rekeyed(bytes(32), 1, 1))
        assert (group.keyring.primary, group.keyring.era) == (bytes(32), 1)


async def test_waiting_keyring_changes_are_merged() -> None:
    requests = Requests(lambda: None)
    first, second = RING.install(b"1" * 32), RING.install(b"2" * 32)
    requests.change_keyring(first)
    requests.change_keyring(second)
    assert requests.take()[1] == [KeyringChanged(first.merge(second))]
    assert requests.take()[1] == []


@in_simulated_time
@pytest.mark.parametrize("timeout_s", [-1, 0, 0.0001, 601])
async def test_query_with_invalid_timeout_is_refused(timeout_s: float) -> None:
    async with gossip.open_group(HOME, key=RING, network=MemoryNetwork()) as group:
        with pytest.raises(ValueError, match="from 1 ms to 600 s"):
            async with group.query("ping", timeout_s=timeout_s):
                pass
        async with group.query("ping", timeout_s=1) as answers:
            assert [answer async for answer in answers] == []


@in_simulated_time
async def test_node_in_maintenance_ignores_joiners() -> None:
    network = MemoryNetwork()
    async with (
        gossip.open_group(HOME, key=RING, network=network) as alice,
        gossip.open_group(HOME, key=RING, seeds=seed_of(alice), network=network) as boris,
    ):
        await until_member(alice, boris)
        alice.set_maintenance(on=True)
        await trio.sleep(1)
        async with gossip.open_group(HOME, key=RING, seeds=seed_of(alice), network=network) as carol:
            await trio.sleep(60)
            assert carol.members() == ()
            assert alice.describe().core.dropped[DropReason.MAINTENANCE] > 0
            assert alice.describe().core.in_maintenance
            assert [each.status for each in boris.members()] == [gossip.Status.ALIVE]
            alice.set_maintenance(on=False)
            await until_member(carol, alice)


def test_core_does_not_import_trio_or_cryptography() -> None:
    code = "import gossip, sys; gossip.Swim; print(sorted({'trio', 'cryptography', 'cbor2'} & sys.modules.keys()))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("bind", ["localhost", "router.example", ""])
def test_group_must_bind_to_numeric_host(bind: str) -> None:
    with pytest.raises(gossip.ConfigError, match="numeric"):
        gossip.open_group(bind, key=RING)


@in_simulated_time
async def test_aligned_rounds_begin_at_multiples_of_period() -> None:
    await trio.sleep(0.7)
    async with gossip.open_group(HOME, key=RING, network=MemoryNetwork(), aligned_rounds=True) as group:
        began_s = trio.current_time()
        first_s = began_s + group._core._prober.round_deadline / 1000
    assert began_s <= first_s < began_s + 1
    assert first_s == pytest.approx(round(first_s), abs=0.001)
