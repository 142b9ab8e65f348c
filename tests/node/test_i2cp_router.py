"""The I2CP router against one that speaks real bytes: publishing, refusals and losses.

The clock is virtual and runs with trio's, so reconnections with their pauses take no time.
"""

import pytest
import trio
import trio.testing

from bridge.node.router.link import Credentials
from bridge.node.router.router import Router, RouterError
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.i2p.i2cp_messages import Disconnect, SessionStatus, SetDate
from bridge.wire.i2p.meta_lease_set import MetaLease, build, encode, sign
from tests.node.fake_i2cp_router import NOW_S, FakeRouter
from tests.node.i2cp_stage import HASH, LEAF, MASTER, OTHER, TRANSIENT, Clock, Patch, stage, structure

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
        with pytest.raises(RouterError, match="i2pd does not open a session for a destination with an offline key"):
            await on.router.publish_meta_lease_set(HASH, structure())
        assert on.fake.sessions == []


async def test_what_no_router_may_have_never_leaves_the_node(monkeypatch: Patch, autojump_clock: Clock) -> None:
    demo = new_master_key(demo=True)
    leases = (MetaLease(LEAF.hash, cost=0, ends_s=NOW_S + 900),)
    unpublished = encode(sign(build(MASTER.destination, NOW_S, leases, unpublished=True), MASTER.private_key))
    stale = encode(TRANSIENT.sign(NOW_S - 3600, (MetaLease(LEAF.hash, cost=0, ends_s=NOW_S + 900),)))
    async with stage(monkeypatch, autojump_clock, None, TRANSIENT, demo.as_signing_key()) as on:
        for master, offered, says in (
            (MASTER, b"rubbish", "not a Meta LeaseSet2"),
            (MASTER, structure(OTHER.as_signing_key()), "not for"),
            (MASTER, unpublished, "marked unpublished"),
            (MASTER, stale, "more than 10 minutes ago"),
            (OTHER, structure(OTHER.as_signing_key()), "does not have a signing key"),
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
        with pytest.raises(RouterError, match="does not respond: no date within 10 s"):
            await on.router.publish_meta_lease_set(HASH, structure())
        assert trio.current_time() - began_s == pytest.approx(10, abs=0.1)


@pytest.mark.parametrize("garbage", [b"HTTP/1.0 400 Bad Request\r\n\r\n", b"\xff" * 9, b"\0\0\0\1\x21\0"])
async def test_something_else_at_the_port_is_told_as_such(
    monkeypatch: Patch, autojump_clock: Clock, garbage: bytes
) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(garbage=garbage)) as on:
        with pytest.raises(RouterError, match="does not speak I2CP"):
            await on.router.publish_meta_lease_set(HASH, structure())


async def test_messages_that_come_byte_by_byte_are_heard(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(piece_bytes=1)) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        assert on.fake.structures == [structure()]


@pytest.mark.parametrize("message", [SetDate, SessionStatus])
async def test_a_router_that_is_gone_in_the_middle_of_a_message_is_tried_again(
    monkeypatch: Patch, autojump_clock: Clock, message: type[SetDate | SessionStatus]
) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(ends_within=message)) as on:
        with pytest.raises(RouterError, match="closed the connection"):
            await on.router.publish_meta_lease_set(HASH, structure())
        on.fake.ends_within = None
        await on.router.publish_meta_lease_set(HASH, structure(after_s=1))
        assert on.fake.structures == [structure(after_s=1)]


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


async def test_stopping_node_disconnects_from_the_router(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        fake = on.fake
    assert "the farm's node is done" in fake.goodbyes


@pytest.mark.parametrize("fake", [FakeRouter(), FakeRouter(is_i2pd=True)], ids=["Java", "i2pd"])
async def test_a_structure_that_is_not_later_than_the_last_or_of_another_time_stays_here(
    monkeypatch: Patch, autojump_clock: Clock, fake: FakeRouter
) -> None:
    """What a floodfill refuses is refused before the router has it, whatever software that is."""
    key = MASTER.as_signing_key()
    async with stage(monkeypatch, autojump_clock, fake, key) as on:
        await on.router.publish_meta_lease_set(HASH, structure(key, 5))
        for after_s, reason in ((4, "not published in a later second"), (-601, "10 minutes ago"), (70, "from now")):
            with pytest.raises(RouterError, match=reason):
                await on.router.publish_meta_lease_set(HASH, structure(key, after_s))
        assert on.fake.structures == [structure(key, 5)]
