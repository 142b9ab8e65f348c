"""The I2CP router with a fake router that speaks I2CP: publishing, refusals and losses.

The clock is virtual and advances with trio's clock, so reconnections with their pauses are fast.
"""

import pytest
import trio
import trio.testing

from bridge.node.router.i2cp_connection import I2cpConnection
from bridge.node.router.i2cp_publishing import MasterSession
from bridge.node.router.link import Credentials
from bridge.node.router.router import Router, RouterError
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.i2p.i2cp_messages import Disconnect, SessionStatus, SetDate
from bridge.wire.i2p.meta_lease_set import MetaLease, build, encode, sign
from tests.node.fake_i2cp_router import NOW_S, FakeRouter
from tests.node.i2cp_stage import HASH, LEAF, MASTER, OLD_TRANSIENT, OTHER, TRANSIENT, Clock, Patch, stage, structure

# -- publishing --------------------------------------------------------------------------------------------------------


async def test_structure_is_published_in_session_of_transient_key(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        router: Router = on.router
        await router.publish_meta_lease_set(HASH, structure())
        assert on.fake.sessions == [MASTER.destination.address]
        assert on.fake.structures == [structure()]


async def test_later_structures_use_same_session(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        for after_s in range(3):
            await on.router.publish_meta_lease_set(HASH, structure(after_s=after_s))
        assert on.fake.structures == [structure(after_s=after_s) for after_s in range(3)]
        assert len(on.fake.sessions) == 1


async def test_masters_have_separate_sessions(monkeypatch: Patch, autojump_clock: Clock) -> None:
    second = OTHER.as_signing_key()
    async with stage(monkeypatch, autojump_clock, None, TRANSIENT, second) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        await on.router.publish_meta_lease_set(OTHER.destination.hash, structure(second))
        assert on.fake.sessions == [MASTER.destination.address, OTHER.destination.address]
        await on.router.stop_publishing_meta_lease_set(HASH)
        assert on.fake.destroyed == 1
        await on.router.publish_meta_lease_set(OTHER.destination.hash, structure(second, 1))
        assert len(on.fake.sessions) == 2


async def test_stop_without_publication_does_not_open_session(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        await on.router.stop_publishing_meta_lease_set(HASH)
        assert on.fake.sessions == []


async def test_stop_without_router_ends_within_seconds(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        on.fake.up = False
        await on.fake.crash()
        with trio.fail_after(10):
            await on.router.stop_publishing_meta_lease_set(HASH)


async def test_i2pd_receives_zero_as_count_of_private_keys(monkeypatch: Patch, autojump_clock: Clock) -> None:
    key = MASTER.as_signing_key()
    async with stage(monkeypatch, autojump_clock, FakeRouter(is_i2pd=True), key) as on:
        await on.router.publish_meta_lease_set(HASH, structure(key))
        assert on.fake.structures == [structure(key)]


async def test_i2pd_uses_session_of_master_for_transient_key(monkeypatch: Patch, autojump_clock: Clock) -> None:
    """The session has the date of the transient key, which may be weeks old."""
    key = MASTER.sign_transient(NOW_S - 20 * 86_400)
    async with stage(monkeypatch, autojump_clock, FakeRouter(is_i2pd=True), key) as on:
        await on.router.publish_meta_lease_set(HASH, structure(key))
        assert on.fake.sessions == [MASTER.destination.address]
        assert on.fake.structures == [structure(key)]


async def test_old_transient_key_with_i2pd_opens_no_session(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(is_i2pd=True), OLD_TRANSIENT) as on:
        with pytest.raises(RouterError, match="make a new one with `garlicfarm keys offline`"):
            await on.router.publish_meta_lease_set(HASH, structure())
        assert on.fake.sessions == []


async def test_invalid_structure_is_not_sent_to_router(monkeypatch: Patch, autojump_clock: Clock) -> None:
    demo = new_master_key(demo=True)
    leases = (MetaLease(LEAF.hash, cost=0, ends_s=NOW_S + 900),)
    unpublished = encode(sign(build(MASTER.destination, NOW_S, leases, unpublished=True), MASTER.private_key))
    stale = encode(TRANSIENT.sign(NOW_S - 3600, (MetaLease(LEAF.hash, cost=0, ends_s=NOW_S + 900),)))
    async with stage(monkeypatch, autojump_clock, None, TRANSIENT, demo.as_signing_key()) as on:
        for master, offered, message in (
            (MASTER, b"rubbish", "not a Meta LeaseSet2"),
            (MASTER, structure(OTHER.as_signing_key()), "not for"),
            (MASTER, unpublished, "marked unpublished"),
            (MASTER, stale, "more than 10 minutes ago"),
            (OTHER, structure(OTHER.as_signing_key()), "does not have a signing key"),
            (demo, structure(demo.as_signing_key()), "demonstration"),
        ):
            with pytest.raises(RouterError, match=message):
                await on.router.publish_meta_lease_set(master.destination.hash, offered)
        assert on.fake.sessions == []


@pytest.mark.parametrize(
    ("status", "message"),
    [(3, "invalid"), (4, "no further|further sessions"), (5, "another client"), (77, "status is 77")],
)
async def test_refused_session_is_reported_immediately(
    monkeypatch: Patch, autojump_clock: Clock, status: int, message: str
) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(session_status=status)) as on:
        began_s = trio.current_time()
        with pytest.raises(RouterError, match=message):
            await on.router.publish_meta_lease_set(HASH, structure())
        assert trio.current_time() == began_s


async def test_refused_structure_is_reported_without_repetition(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(refusal="Invalid leaseset: \x1b[31mtoo old")) as on:
        with pytest.raises(RouterError, match=r"disconnected: Invalid leaseset: \?\[31mtoo old"):
            await on.router.publish_meta_lease_set(HASH, structure())
        on.fake.refusal = None
        await trio.sleep(120)
        assert on.fake.structures == []


async def test_structure_confirmed_after_timeout_is_published(monkeypatch: Patch, autojump_clock: Clock) -> None:
    """The timeout passes while the router already has the structure, and only its confirmation is missing."""
    monkeypatch.setattr("bridge.node.router.i2cp_publishing.PUBLISH_TIMEOUT_S", 20)
    async with stage(monkeypatch, autojump_clock, FakeRouter(delay_s=9)) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        assert trio.current_time() == 27
        assert on.fake.structures == [structure()]


async def test_unconfirmed_structure_is_reported_at_end_of_connection(
    monkeypatch: Patch, autojump_clock: Clock
) -> None:
    monkeypatch.setattr("bridge.node.router.i2cp_publishing.PUBLISH_TIMEOUT_S", 1)
    async with stage(monkeypatch, autojump_clock) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        on.fake.unresponsive = True
        with pytest.raises(RouterError, match="does not respond: no date within 10 s"):
            await on.router.publish_meta_lease_set(HASH, structure(after_s=1))


async def test_structure_of_canceled_publication_is_not_sent(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(delay_s=5)) as on:
        with trio.move_on_after(1):
            await on.router.publish_meta_lease_set(HASH, structure())
        await trio.sleep(120)
        assert on.fake.structures == []


async def test_last_accepted_structure_is_sent_again_after_refusal(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        on.fake.refusal = "not this one"
        with pytest.raises(RouterError, match="not this one"):
            await on.router.publish_meta_lease_set(HASH, structure(after_s=1))
        on.fake.refusal = None
        await trio.sleep(30)
        assert on.fake.structures == [structure(), structure()]


# -- standby -----------------------------------------------------------------------------------------------------------

OF_ANOTHER = MASTER.sign_transient(NOW_S)
"""The key of the present publisher, another node."""
BOTH = pytest.mark.parametrize("is_i2pd", [False, True], ids=["Java", "i2pd"])


@BOTH
async def test_standby_hands_over_current_structure_on_request(
    monkeypatch: Patch, autojump_clock: Clock, *, is_i2pd: bool
) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(is_i2pd=is_i2pd)) as on:
        assert "reached" in (await on.router.keep_ready(HASH, structure(OF_ANOTHER), urgent=False) or "")
        await trio.sleep(60)
        assert "tunnels" in (await on.router.keep_ready(HASH, structure(OF_ANOTHER), urgent=False) or "")
        assert on.fake.sessions == [MASTER.destination.address]
        assert on.fake.structures == []
        for _ in range(2):
            await on.fake.request_lease_set()
            await trio.sleep(60)
        assert on.fake.structures == [structure(OF_ANOTHER)] * 2
        assert await on.router.keep_ready(HASH, structure(OF_ANOTHER), urgent=False) is None


@BOTH
async def test_router_gets_later_structure_unrequested_only_if_i2pd(
    monkeypatch: Patch, autojump_clock: Clock, *, is_i2pd: bool
) -> None:
    """A Java router would delay the next structure. i2pd publishes its last structure again, so it needs the newest."""
    first, later = structure(OF_ANOTHER), structure(OF_ANOTHER, 100)
    async with stage(monkeypatch, autojump_clock, FakeRouter(is_i2pd=is_i2pd)) as on:
        await on.router.keep_ready(HASH, first, urgent=False)
        await trio.sleep(1)
        await on.fake.request_lease_set()
        await trio.sleep(99)
        await on.router.keep_ready(HASH, later, urgent=False)
        await trio.sleep(60)
        assert on.fake.structures == ([first, later] if is_i2pd else [first])
        await on.fake.request_lease_set()
        await trio.sleep(1)
        assert on.fake.structures[-1] == later


@BOTH
async def test_standby_publishes_in_its_open_session(
    monkeypatch: Patch, autojump_clock: Clock, *, is_i2pd: bool
) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(is_i2pd=is_i2pd)) as on:
        await on.router.keep_ready(HASH, structure(OF_ANOTHER), urgent=False)
        await trio.sleep(5)
        began_s = trio.current_time()
        await on.router.publish_meta_lease_set(HASH, structure(after_s=5))
        assert trio.current_time() == began_s
        assert on.fake.structures == [structure(after_s=5)]
        assert len(on.fake.sessions) == 1


@pytest.mark.parametrize(("pause_s", "is_i2pd", "sessions"), [(50, False, 2), (70, False, 1), (5, True, 1)])
async def test_standby_takes_over_without_delay_after_recent_hand_over(
    monkeypatch: Patch, autojump_clock: Clock, pause_s: int, sessions: int, *, is_i2pd: bool
) -> None:
    """A Java router would delay a structure within a minute after the last one in the same session."""
    async with stage(monkeypatch, autojump_clock, FakeRouter(is_i2pd=is_i2pd)) as on:
        await on.router.keep_ready(HASH, structure(OF_ANOTHER), urgent=False)
        await trio.sleep(1)
        await on.fake.request_lease_set()
        await trio.sleep(pause_s)
        began_s = trio.current_time()
        await on.router.publish_meta_lease_set(HASH, structure(after_s=1))
        assert trio.current_time() == began_s
        assert on.fake.structures == [structure(OF_ANOTHER), structure(after_s=1)]
        assert (len(on.fake.sessions), on.fake.destroyed) == (sessions, sessions - 1)
        await on.router.publish_meta_lease_set(HASH, structure(after_s=2))
        assert len(on.fake.sessions) == sessions


async def test_urgent_structure_is_sent_to_i2pd_repeatedly(monkeypatch: Patch, autojump_clock: Clock) -> None:
    """The router i2pd publishes at most once in 20 s, and drops a structure that arrives earlier."""
    async with stage(monkeypatch, autojump_clock, FakeRouter(is_i2pd=True)) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        await trio.sleep(22)
        assert on.fake.structures == [structure()] * 8
        await trio.sleep(300)
        assert on.fake.structures == [structure()] * 9
        await on.router.keep_ready(HASH, structure(OF_ANOTHER, 300), urgent=True)
        await trio.sleep(300)
        assert on.fake.structures[9:] == [structure(OF_ANOTHER, 300)] * 9


async def test_structure_too_old_for_i2pd_is_not_repeated(monkeypatch: Patch, autojump_clock: Clock) -> None:
    """Given a router whose clock is ten minutes ahead, the session waits instead of repeating without end."""
    looks = 0
    still_good = MasterSession._still_good

    def counted(session: MasterSession, router_now_ms: int | None = None) -> bytes | None:
        nonlocal looks
        looks += 1
        assert looks < 100
        return still_good(session, router_now_ms)

    monkeypatch.setattr(MasterSession, "_still_good", counted)
    async with stage(monkeypatch, autojump_clock, FakeRouter(is_i2pd=True, clock_offset_ms=600_000)) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        await trio.sleep(60)
        assert on.fake.structures == [structure()]
        await on.router.publish_meta_lease_set(HASH, structure(after_s=60))
        assert on.fake.structures == [structure(), structure(after_s=60)]


async def test_impossible_date_of_router_is_refused(monkeypatch: Patch, autojump_clock: Clock) -> None:
    """A moment later, such a date would not fit into the configuration of a session."""
    async with stage(monkeypatch, autojump_clock, FakeRouter(clock_offset_ms=2**63)) as on:
        with pytest.raises(RouterError, match=r"does not speak I2CP: a date of 922337\d+ ms"):
            await on.router.publish_meta_lease_set(HASH, structure())


async def test_structure_is_not_repeated_to_java(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        await trio.sleep(300)
        await on.router.keep_ready(HASH, structure(OF_ANOTHER, 300), urgent=True)
        await trio.sleep(300)
        assert on.fake.structures == [structure(), structure(OF_ANOTHER, 300)]


async def test_standby_session_is_opened_again_and_stopped(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(is_i2pd=True)) as on:
        await on.router.keep_ready(HASH, structure(OF_ANOTHER), urgent=False)
        await trio.sleep(1)
        await on.fake.send_to_clients(SessionStatus(1, 0))
        await trio.sleep(5)
        assert len(on.fake.sessions) == 2
        await on.router.stop_publishing_meta_lease_set(HASH)
        assert on.fake.destroyed == 1
        assert on.fake.structures == []


async def test_standby_without_usable_key_opens_no_session(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(is_i2pd=True), OLD_TRANSIENT) as on:
        with pytest.raises(RouterError, match="keys offline"):
            await on.router.keep_ready(HASH, structure(OF_ANOTHER), urgent=False)
        assert on.fake.connections <= 1
        assert on.fake.sessions == []


async def test_unconfirmed_structure_reports_whole_wait(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async def without_reply(*_: object, **__: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(I2cpConnection, "publish", without_reply)
    async with stage(monkeypatch, autojump_clock) as on:
        with pytest.raises(RouterError, match="within 50 s: it did not confirm the structure"):
            await on.router.publish_meta_lease_set(HASH, structure())


# -- losses ------------------------------------------------------------------------------------------------------------


async def test_restarted_router_receives_structure_again(monkeypatch: Patch, autojump_clock: Clock) -> None:
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


async def test_outdated_structure_is_not_sent_again(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        on.fake.up = False
        await on.fake.crash()
        await trio.sleep(600)
        on.fake.up = True
        await trio.sleep(200)
        assert on.fake.structures == [structure()]


async def test_reconnections_after_refused_session_are_rare(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(session_status=4)) as on:
        with pytest.raises(RouterError):
            await on.router.publish_meta_lease_set(HASH, structure())
        before = on.fake.connections
        await trio.sleep(3600)
        assert on.fake.connections - before <= 2


async def test_router_request_for_lease_set_gets_last_structure(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        await on.fake.request_lease_set()
        await trio.sleep(1)
        assert on.fake.structures == [structure(), structure()]
        assert len(on.fake.sessions) == 1


@pytest.mark.parametrize("end", [Disconnect("shutting down"), SessionStatus(1, 0)])
async def test_session_ended_by_router_is_opened_again(
    monkeypatch: Patch, autojump_clock: Clock, end: Disconnect | SessionStatus
) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        await on.fake.send_to_clients(end)
        await trio.sleep(5)
        assert len(on.fake.sessions) == 2
        assert on.fake.structures == [structure(), structure()]


async def test_unresponsive_router_is_abandoned_after_timeout(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(unresponsive=True)) as on:
        began_s = trio.current_time()
        with pytest.raises(RouterError, match="does not respond: no date within 10 s"):
            await on.router.publish_meta_lease_set(HASH, structure())
        assert trio.current_time() - began_s == pytest.approx(10, abs=0.1)


@pytest.mark.parametrize("garbage", [b"HTTP/1.0 400 Bad Request\r\n\r\n", b"\xff" * 9, b"\0\0\0\1\x21\0"])
async def test_other_protocol_at_port_is_reported(monkeypatch: Patch, autojump_clock: Clock, garbage: bytes) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(garbage=garbage)) as on:
        with pytest.raises(RouterError, match="does not speak I2CP"):
            await on.router.publish_meta_lease_set(HASH, structure())


async def test_message_in_single_bytes_is_decoded(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(piece_bytes=1)) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        assert on.fake.structures == [structure()]


@pytest.mark.parametrize("message", [SetDate, SessionStatus])
async def test_router_closing_within_message_is_retried(
    monkeypatch: Patch, autojump_clock: Clock, message: type[SetDate | SessionStatus]
) -> None:
    async with stage(monkeypatch, autojump_clock, FakeRouter(ends_within=message)) as on:
        with pytest.raises(RouterError, match="closed the connection"):
            await on.router.publish_meta_lease_set(HASH, structure())
        on.fake.ends_within = None
        await on.router.publish_meta_lease_set(HASH, structure(after_s=1))
        assert on.fake.structures == [structure(after_s=1)]


async def test_user_with_password_opens_protected_router(monkeypatch: Patch, autojump_clock: Clock) -> None:
    word = "secret"
    login, wrong_login = Credentials("farm", word), Credentials("farm", "guess")
    async with stage(monkeypatch, autojump_clock, FakeRouter(password=word), credentials=login) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        assert on.fake.structures == [structure()]
    async with stage(monkeypatch, autojump_clock, FakeRouter(password=word), credentials=wrong_login) as on:
        with pytest.raises(RouterError, match="Authorization required") as refused:
            await on.router.publish_meta_lease_set(HASH, structure())
        assert "guess" not in str(refused.value)


async def test_stopping_node_disconnects_from_router(monkeypatch: Patch, autojump_clock: Clock) -> None:
    async with stage(monkeypatch, autojump_clock) as on:
        await on.router.publish_meta_lease_set(HASH, structure())
        fake = on.fake
    assert "the farm's node is done" in fake.disconnects


@pytest.mark.parametrize("fake", [FakeRouter(), FakeRouter(is_i2pd=True)], ids=["Java", "i2pd"])
async def test_structure_with_invalid_time_is_not_sent(
    monkeypatch: Patch, autojump_clock: Clock, fake: FakeRouter
) -> None:
    """Floodfills would refuse such a structure; it is refused before it is sent, for both kinds of routers."""
    key = MASTER.as_signing_key()
    async with stage(monkeypatch, autojump_clock, fake, key) as on:
        await on.router.publish_meta_lease_set(HASH, structure(key, 5))
        for after_s, reason in ((4, "its timestamp is not after"), (-601, "10 minutes ago"), (70, "from now")):
            with pytest.raises(RouterError, match=reason):
                await on.router.publish_meta_lease_set(HASH, structure(key, after_s))
        assert on.fake.structures == [structure(key, 5)]
