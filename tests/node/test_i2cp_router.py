"""The I2CP router against one that speaks real bytes: publishing, refusals, losses, look-ups, and the health of leaves.

The clock is virtual and runs with trio's, so reconnections with their pauses take no time.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
import trio.testing

from bridge.node.alarms import Alarms
from bridge.node.event_log import EventLog
from bridge.node.host import HostSampler, LoopLag
from bridge.node.i2cp_publishing import I2cpAccess
from bridge.node.i2cp_router import I2cpRouter, I2cpRouterAccess
from bridge.node.router import Leaf, MeasuredStatus, Router, RouterError
from bridge.node.router_link import Credentials, Software
from bridge.wire.destination_keys import SigningKey, new_demo_leaf, new_master_key
from bridge.wire.i2cp_messages import Disconnect, SessionStatus
from bridge.wire.meta_lease_set import MetaLease, build, encode, sign
from tests.node.fake_i2cp_router import LINK, NOW_S, FakeRouter, clock_now_ms, in_place_of_sockets

Patch = pytest.MonkeyPatch
Clock = trio.testing.MockClock

MASTER, OTHER = new_master_key(), new_master_key()
TRANSIENT = MASTER.sign_transient(NOW_S)
LEAF, STRANGER = new_demo_leaf(), new_demo_leaf()
HASH = MASTER.destination.hash


def structure(key: SigningKey = TRANSIENT, after_s: int = 0) -> bytes:
    published_s = NOW_S + after_s
    return encode(key.sign(published_s, (MetaLease(LEAF.hash, cost=3, ends_s=published_s + 900),)))


@dataclass
class Stage:
    """A node's router, the fake one behind it, and the alarms."""

    router: I2cpRouter
    fake: FakeRouter
    alarms: Alarms

    def standing(self) -> dict[str, str]:
        """The texts of the alarms that stand."""
        return {alarm.kind: alarm.text for alarm in self.alarms.standing()}


@asynccontextmanager
async def stage(
    monkeypatch: Patch,
    clock: Clock,
    fake: FakeRouter | None = None,
    *keys: SigningKey,
    leaves: tuple[Leaf, ...] = (Leaf(LEAF),),
    credentials: Credentials | None = None,
) -> AsyncIterator[Stage]:
    assert clock.autojump_threshold == 0
    fake = fake or FakeRouter()
    held = {key.destination.hash: key for key in keys or (TRANSIENT,)}
    access = I2cpAccess(LINK, Software.I2PD if fake.is_i2pd else Software.JAVA, credentials)
    alarms = Alarms(EventLog("node-1", clock_now_ms))
    router = I2cpRouter(I2cpRouterAccess(access), leaves, HostSampler(), LoopLag(), alarms, signing_key_of=held.get)
    # The node ends before its router does.
    async with trio.open_nursery() as outer:
        with in_place_of_sockets(fake, outer, monkeypatch):
            async with trio.open_nursery() as inner:
                inner.start_soon(router.run)
                yield Stage(router, fake, alarms)
                inner.cancel_scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
        outer.cancel_scope.cancel()


# -- publishing --------------------------------------------------------------------------------------------------------


async def test_a_structure_reaches_the_router_in_a_session_that_the_transient_key_signed(
    monkeypatch: Patch, autojump_clock: Clock
) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        router: Router = on.router
        await router.publish_meta_lease_set(HASH, structure())
        assert on.fake.sessions == [MASTER.destination.address]
        assert on.fake.structures == [structure()]


async def test_later_structures_go_through_the_same_session(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        for after_s in range(3):
            await on.router.publish_meta_lease_set(HASH, structure(after_s=after_s))
        assert on.fake.structures == [structure(after_s=after_s) for after_s in range(3)]
        assert len(on.fake.sessions) == 1


async def test_each_master_has_a_session_of_its_own_and_stopping_one_leaves_the_other(
    monkeypatch: Patch, autojump_clock: Clock
) -> None:
    second = OTHER.as_signing_key()
    async with stage(monkeypatch, autojump_clock, None, TRANSIENT, second) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        await on.router.publish_meta_lease_set(OTHER.destination.hash, structure(second))
        assert on.fake.sessions == [MASTER.destination.address, OTHER.destination.address]
        await on.router.stop_publishing_meta_lease_set(HASH)
        assert on.fake.destroyed == 1
        await on.router.publish_meta_lease_set(OTHER.destination.hash, structure(second, 1))
        assert len(on.fake.sessions) == 2


async def test_stopping_what_was_never_published_is_harmless(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        await on.router.stop_publishing_meta_lease_set(HASH)
        assert on.fake.sessions == []


async def test_stopping_while_the_router_is_gone_ends_within_seconds(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        on.fake.up = False
        await on.fake.crash()
        with trio.fail_after(10):
            await on.router.stop_publishing_meta_lease_set(HASH)


async def test_i2pd_hears_that_no_private_keys_follow(monkeypatch: Patch, autojump_clock: Clock) -> None:
    key = MASTER.as_signing_key()
    async with stage(monkeypatch, autojump_clock, FakeRouter(is_i2pd=True), key) as on:
        await on.router.publish_meta_lease_set(HASH, structure(key))
        assert on.fake.structures == [structure(key)]


async def test_a_transient_key_with_i2pd_is_refused_in_words_before_it_is_refused_without(
    monkeypatch: Patch, autojump_clock: Clock
) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(is_i2pd=True)) as on:
        with pytest.raises(RouterError, match="i2pd makes no session for a destination whose key is offline"):
            await on.router.publish_meta_lease_set(HASH, structure())
        assert on.fake.sessions == []


async def test_what_no_router_may_have_never_leaves_the_node(monkeypatch: Patch, autojump_clock: Clock) -> None:
    demo = new_master_key(demo=True)
    leases = (MetaLease(LEAF.hash, cost=0, ends_s=NOW_S + 900),)
    unpublished = encode(sign(build(MASTER.destination, NOW_S, leases, unpublished=True), MASTER.private_key))
    stale = encode(TRANSIENT.sign(NOW_S - 3600, (MetaLease(LEAF.hash, cost=0, ends_s=NOW_S + 900),)))
    async with stage(monkeypatch, autojump_clock, None, TRANSIENT, demo.as_signing_key()) as on:
        for master, offered, says in (
            (MASTER, b"rubbish", "no Meta LeaseSet2"),
            (MASTER, structure(OTHER.as_signing_key()), "not for"),
            (MASTER, unpublished, "marked unpublished"),
            (MASTER, stale, "more than 10 minutes ago"),
            (OTHER, structure(OTHER.as_signing_key()), "no signing key"),
            (demo, structure(demo.as_signing_key()), "demonstration"),
        ):
            with pytest.raises(RouterError, match=says):
                await on.router.publish_meta_lease_set(master.destination.hash, offered)
        assert on.fake.sessions == []


@pytest.mark.parametrize(
    ("status", "says"),
    [(3, "invalid"), (4, "no further|further sessions"), (5, "another client"), (77, "status is 77")],
)
async def test_a_refused_session_is_told_at_once(
    monkeypatch: Patch, autojump_clock: Clock, status: int, says: str
) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(session_status=status)) as on:
        began_s = trio.current_time()
        with pytest.raises(RouterError, match=says):
            await on.router.publish_meta_lease_set(HASH, structure())
        assert trio.current_time() == began_s


async def test_a_refused_structure_is_told_with_the_routers_reason_and_not_offered_again(
    monkeypatch: Patch, autojump_clock: Clock
) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(refusal="Invalid leaseset: \x1b[31mtoo old")) as on:
        with pytest.raises(RouterError, match=r"disconnected: Invalid leaseset: \?\[31mtoo old"):
            await on.router.publish_meta_lease_set(HASH, structure())
        on.fake.refusal = None
        await trio.sleep(120)
        assert on.fake.structures == []


async def test_after_a_refusal_the_structure_accepted_before_is_handed_over_again(
    monkeypatch: Patch, autojump_clock: Clock
) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        on.fake.refusal = "not this one"
        with pytest.raises(RouterError, match="not this one"):
            await on.router.publish_meta_lease_set(HASH, structure(after_s=1))
        on.fake.refusal = None
        await trio.sleep(30)
        assert on.fake.structures == [structure(), structure()]


# -- losses ------------------------------------------------------------------------------------------------------------


async def test_a_router_that_was_restarted_gets_the_structure_again(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        on.fake.up = False
        await on.fake.crash()
        await trio.sleep(100)
        on.fake.up = True
        await trio.sleep(100)
        assert on.fake.structures == [structure(), structure()]
        await on.router.publish_meta_lease_set(HASH, structure(after_s=200))
        assert on.fake.structures[-1] == structure(after_s=200)


async def test_what_has_become_too_old_is_not_handed_over_again(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        on.fake.up = False
        await on.fake.crash()
        await trio.sleep(600)
        on.fake.up = True
        await trio.sleep(200)
        assert on.fake.structures == [structure()]


async def test_reconnections_become_rare(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(session_status=4)) as on:
        with pytest.raises(RouterError):
            await on.router.publish_meta_lease_set(HASH, structure())
        before = on.fake.connections
        await trio.sleep(3600)
        assert on.fake.connections - before <= 2


async def test_a_router_that_asks_for_a_lease_set_gets_the_last_one(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        await on.fake.request_lease_set()
        await trio.sleep(1)
        assert on.fake.structures == [structure(), structure()]
        assert len(on.fake.sessions) == 1


@pytest.mark.parametrize("end", [Disconnect("shutting down"), SessionStatus(1, 0)])
async def test_a_session_that_the_router_ends_is_made_anew(
    monkeypatch: Patch, autojump_clock: Clock, end: Disconnect | SessionStatus
) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        await on.fake.tell(end)
        await trio.sleep(5)
        assert len(on.fake.sessions) == 2
        assert on.fake.structures == [structure(), structure()]


async def test_a_silent_router_is_given_up_within_the_timeout(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(silent=True)) as on:
        began_s = trio.current_time()
        with pytest.raises(RouterError, match="silent: no date within 10 s"):
            await on.router.publish_meta_lease_set(HASH, structure())
        assert trio.current_time() - began_s == pytest.approx(10, abs=0.1)


@pytest.mark.parametrize("garbage", [b"HTTP/1.0 400 Bad Request\r\n\r\n", b"\xff" * 9, b"\0\0\0\1\x21\0"])
async def test_something_else_at_the_port_is_told_as_such(
    monkeypatch: Patch, autojump_clock: Clock, garbage: bytes
) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(garbage=garbage)) as on:
        with pytest.raises(RouterError, match="does not speak I2CP"):
            await on.router.publish_meta_lease_set(HASH, structure())


async def test_user_and_password_open_a_router_that_demands_them(monkeypatch: Patch, autojump_clock: Clock) -> None:
    word = "secret"
    right, wrong = Credentials("farm", word), Credentials("farm", "guess")
    async with stage(monkeypatch, autojump_clock, FakeRouter(password=word), credentials=right) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        assert on.fake.structures == [structure()]
    async with stage(monkeypatch, autojump_clock, FakeRouter(password=word), credentials=wrong) as on:
        with pytest.raises(RouterError, match="Authorization required") as refused:
            await on.router.publish_meta_lease_set(HASH, structure())
        assert "guess" not in str(refused.value)


async def test_a_node_that_ends_says_goodbye(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        fake = on.fake
    assert "the farm's node is done" in fake.goodbyes


# -- status and measurements -------------------------------------------------------------------------------------------


async def test_a_router_that_answers_is_attached_and_what_it_does_not_tell_is_unknown(
    monkeypatch: Patch, autojump_clock: Clock
) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        status = await on.router.local_router_status()
        assert status.attached
        assert status.uptime_ms is None
        assert status.exploratory_tunnels is None
        assert status.participating_tunnels is None
        assert status.memory_percent is not None
        assert on.standing() == {}


async def test_a_router_that_is_down_is_an_alarm_and_its_leaves_are_ill_until_it_is_back(
    monkeypatch: Patch, autojump_clock: Clock
) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(up=False)) as on:
        assert not (await on.router.local_router_status()).attached
        assert not (await on.router.local_leaf_status(LEAF.hash)).healthy
        assert "nothing answers at 127.0.0.1:7654" in on.standing()["router-unreachable"]
        on.fake.up = True
        await trio.sleep(60)
        assert (await on.router.local_router_status()).attached
        assert (await on.router.local_leaf_status(LEAF.hash)).healthy
        assert on.standing() == {}


async def test_a_router_that_is_down_makes_no_report_late(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(up=False)) as on:
        for _ in range(10):
            await on.router.local_router_status()
        assert trio.current_time() == 0


async def test_a_router_whose_clock_is_off_is_an_alarm_and_still_gets_a_session(
    monkeypatch: Patch, autojump_clock: Clock
) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(clock_offset_ms=-45_000)) as on:
        await on.router.local_router_status()
        assert "differs from this machine's by -45 s" in on.standing()["router-clock"]
        await on.router.publish_meta_lease_set(HASH, structure())
        assert on.fake.structures == [structure()]


async def test_a_leaf_whose_lease_set_is_not_found_twice_in_a_row_has_no_tunnels(
    monkeypatch: Patch, autojump_clock: Clock
) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(known={LEAF.hash: LEAF})) as on:
        await on.router.local_router_status()
        await trio.sleep(1)
        assert (await on.router.local_leaf_status(LEAF.hash)).healthy
        on.fake.known.clear()
        await trio.sleep(60)
        assert (await on.router.local_leaf_status(LEAF.hash)).healthy
        await trio.sleep(60)
        assert not (await on.router.local_leaf_status(LEAF.hash)).healthy
        on.fake.known[LEAF.hash] = LEAF
        await trio.sleep(60)
        assert (await on.router.local_leaf_status(LEAF.hash)).healthy


async def test_uptime_of_a_leaf_counts_from_when_it_became_healthy(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(known={LEAF.hash: LEAF})) as on:
        await on.router.local_router_status()
        assert (await on.router.local_leaf_status(LEAF.hash)).uptime_ms == 0
        await trio.sleep(30)
        assert (await on.router.local_leaf_status(LEAF.hash)).uptime_ms == 30_000


async def test_a_leaf_whose_service_does_not_answer_is_ill(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async def nobody(host: str, port: int, timeout_s: float) -> bool:
        await trio.lowlevel.checkpoint()
        return (host, port, timeout_s) != ("127.0.0.1", 80, 2.0)

    monkeypatch.setattr("bridge.node.i2cp_router.answers", nobody)
    async with stage(monkeypatch, autojump_clock, leaves=(Leaf(LEAF, ("127.0.0.1", 80)),)) as on:
        await on.router.local_router_status()
        assert not (await on.router.local_leaf_status(LEAF.hash)).healthy


async def test_a_leaf_that_is_not_configured_is_an_error(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        assert await on.router.local_leaf_hashes(HASH) == (LEAF.hash,)
        with pytest.raises(RouterError, match="is not a leaf of this node"):
            await on.router.local_leaf_status(STRANGER.hash)


async def test_a_strangers_destination_is_measured_and_nothing_is_invented(
    monkeypatch: Patch, autojump_clock: Clock
) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(known={STRANGER.hash: STRANGER}), leaves=()) as on:
        assert await on.router.remote_measured_status(STRANGER.hash) == MeasuredStatus(reachable=True, fetch_ms=0)
        # One failure says too little.
        assert await on.router.remote_measured_status(OTHER.destination.hash) is None
        await trio.sleep(60)
        assert await on.router.remote_measured_status(OTHER.destination.hash) == MeasuredStatus(reachable=False)


async def test_a_look_up_is_repeated_at_most_once_a_minute(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(known={STRANGER.hash: STRANGER}), leaves=()) as on:
        for _ in range(10):
            await on.router.remote_measured_status(STRANGER.hash)
        assert on.fake.lookups == 1


async def test_an_answer_with_another_destination_measures_nothing(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(known={STRANGER.hash: LEAF}), leaves=()) as on:
        assert await on.router.remote_measured_status(STRANGER.hash) is None


async def test_without_the_router_nothing_is_measured(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(up=False)) as on:
        assert await on.router.remote_measured_status(STRANGER.hash) is None
