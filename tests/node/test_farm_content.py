"""Unsupported content of a farm's log is refused on arrival; the node continues and reports the required version."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from bridge.core.farm.state_machine import Farm
from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.core.log.records import Level, Publication, Scope
from bridge.core.membership.admission import ADMITTED_MAX, Admitted
from bridge.core.membership.authors import AuthorNumbers
from bridge.core.membership.client_keys import Client
from bridge.core.state.farm_state import (
    LOG_TIME_LIMIT_MS,
    SERVERS_MAX,
    SESSION_LIMITS,
    FarmState,
    MasterState,
    ServerState,
)
from bridge.core.state.tables import AUTHORS_MAX
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.raft.farm_content import CHECKS, objection_to_entries, objection_to_snapshot
from bridge.node.raft.notices import QUIET_AFTER_S, RaftNotices
from bridge.wire.log.entries import encode
from bridge.wire.log.snapshot import FarmSnapshot, encode_farm
from consensus.core.messages import AppendEntries, AppendReply, InstallSnapshot, SnapshotReply
from consensus.core.model import ORIGIN, Entry, LogId
from consensus.net.memory import MemoryNetwork
from consensus.protocols.garlic_farm.node.joining import Joining
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.values import LogEntry, LogPack
from consensus.server.status import ContentRejected
from consensus.sessions.table import RequestId, RequestStatus, SessionLimits, SessionTable
from consensus.storage.snapshot_image import ImageWriter
from tests.authored import signed
from tests.effort import each_case
from tests.node.memory_server import ONE, MemoryDisk, Node, build, request, until, voters
from tests.spec.farm_stories import report

TWO = 2
TOO_HIGH = Entry.command(1, signed(Level(65535, "9.9.9")))
UNSIGNED = Entry.command(1, encode(Level(65535, "9.9.9")))
HARMLESS = Entry.command(1, b'{"any":"thing"}')


def snapshot_of(state: FarmState, period_ms: int = 30_000) -> bytes:
    return b"".join(encode_farm(FarmSnapshot(state, period_ms, Farm(0).sessions.dump())))


def farm_at(level: int) -> bytes:
    return snapshot_of(FarmState(0, level=level))


def image_of(state: bytes, last: LogId) -> bytes:
    image = ImageWriter(last, voters(3))
    return image.begin() + image.blocks(state) + image.end()


@asynccontextmanager
async def voter() -> AsyncIterator[Node]:
    """Run one of three voters; the test plays the other two."""
    async with trio.open_nursery() as nursery:
        node = build(ONE, MemoryNetwork(), MemoryDisk(), count=3, checks=CHECKS)
        await nursery.start(node.server.run)
        yield node
        nursery.cancel_scope.cancel()


def rejections(node: Node) -> list[ContentRejected]:
    return [notice for notice in node.notices if isinstance(notice, ContentRejected)]


async def test_append_with_unsupported_level_is_refused(autojump_clock: MockClock) -> None:
    async with voter() as node:
        append = AppendEntries(
            term=1, leader=TWO, previous=ORIGIN, entries=(HARMLESS, TOO_HIGH), commit=2, correlation=7
        )
        reply = await request(node, TWO, append)
        assert reply == AppendReply(term=0, success=False, next_index=1, correlation=7)
        about = node.server.describe().raft
        assert (about.last, about.term, about.leader) == (ORIGIN, 0, None)
        (notice,) = rejections(node)
        assert notice.sender == TWO
        assert "feature level 65535" in notice.reason
        assert "Install garlicfarm 9.9.9 or newer" in notice.reason
        # The server continues with entries that it supports.
        reply = await request(node, TWO, replace(append, entries=(HARMLESS,), commit=1))
        assert isinstance(reply, AppendReply)
        assert (reply.success, reply.next_index) == (True, 2)


async def test_log_pack_with_unsupported_level_is_refused(autojump_clock: MockClock) -> None:
    async with voter() as node:
        joining = Joining(node.server, ONE)
        configuration = wire.JoinClusterRequest(source=TWO, destination=ONE, term=1, entries=())
        assert joining.join(configuration).accepted
        pack = LogPack(0, (Entry.command(1, TOO_HIGH.data),))
        answers: list[wire.Reply | None] = []
        joining.sync(
            wire.SyncLogRequest(source=TWO, destination=ONE, term=1, commit_index=1, entries=(LogEntry(1, pack),)),
            answers.append,
        )
        await until(lambda: bool(answers))
        (answer,) = answers
        assert isinstance(answer, wire.SyncLogResponse)
        assert not answer.accepted
        assert node.server.describe().raft.last == ORIGIN
        assert len(rejections(node)) == 1


def _admitted(count: int, first: int = 1) -> dict[int, Admitted]:
    return {first + number: Admitted(number.to_bytes(8)) for number in range(count)}


def _published_at(second: int) -> dict[str, MasterState]:
    return {"m": MasterState(publication=Publication("m", 1, second, "00"))}


def _client(number: int) -> Client:
    return Client(f"c{number}", bytes(32), (Scope.WEIGHTS,))


@each_case(
    ("state", "period_ms", "message"),
    [
        (FarmState(LOG_TIME_LIMIT_MS + 6_000), 30_000, "log time in ms is 4294967301000"),
        (FarmState(-1), 30_000, "log time in ms is -1"),
        (FarmState(0), 499, "the reporting period in ms is 499"),
        (FarmState(0), 600_001, "the reporting period in ms is 600001"),
        (FarmState(0, level=0), 30_000, "the feature level is 0"),
        (FarmState(0, masters=_published_at(2**32)), 30_000, "the timestamp of a publication is 4294967296"),
        (FarmState(0, masters=_published_at(-1)), 30_000, "the timestamp of a publication is -1"),
        (FarmState(0, admitted=_admitted(ADMITTED_MAX + 1)), 30_000, "admitted identities is 1025"),
        (FarmState(0, admitted={1: Admitted(b"a" * 8, entry=bytes(769))}), 30_000, "bytes of an admission is 769"),
        (FarmState(0, admitted=_admitted(1, 2**31)), 30_000, "a Raft id is 2147483648"),
        (FarmState(0, masters={f"m{each}": MasterState() for each in range(9)}), 30_000, "masters is 9"),
        (
            FarmState(0, servers={each: ServerState(report(each), 0) for each in range(1, SERVERS_MAX + 2)}),
            30_000,
            "servers is 65",
        ),
        (FarmState(0, clients={each.to_bytes(8): _client(each) for each in range(257)}), 30_000, "client keys is 257"),
        (
            FarmState(0, numbers={each.to_bytes(8): AuthorNumbers() for each in range(AUTHORS_MAX + 1)}),
            30_000,
            f"authors is {AUTHORS_MAX + 1}",
        ),
        (FarmState(0, numbers={b"a" * 8: AuthorNumbers(2**53)}), 30_000, "the highest number of an author is"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_snapshot_with_value_out_of_bounds_is_refused(state: FarmState, period_ms: int, message: str) -> None:
    """Such a restored state would end the node at its next entry, again after each restart."""
    objection = objection_to_snapshot(iter([snapshot_of(state, period_ms)]))
    assert objection is not None
    assert "a state that no farm can have" in objection
    assert message in objection


def test_snapshot_with_too_many_sessions_is_refused() -> None:
    table = SessionTable(SessionLimits(sessions_max=5_000))
    for number in range(SESSION_LIMITS.sessions_max + 1):
        assert table.admit(RequestId(f"c{number}", 0, 1), 1, 1) is RequestStatus.NEW
    objection = objection_to_snapshot(encode_farm(FarmSnapshot(FarmState(0), 30_000, table.dump())))
    assert objection is not None
    assert "the number 1025 where 1024 is the limit" in objection


def test_snapshot_at_all_bounds_is_accepted() -> None:
    state = FarmState(
        LOG_TIME_LIMIT_MS,
        masters=_published_at(2**32 - 1),
        admitted=_admitted(ADMITTED_MAX),
        servers={each: ServerState(report(each), -5) for each in range(1, SERVERS_MAX + 1)},
        numbers={b"a" * 8: AuthorNumbers(2**53 - 1)},
    )
    assert objection_to_snapshot(iter([snapshot_of(state, 600_000)])) is None


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (farm_at(SUPPORTED_LEVEL + 1), f"feature level {SUPPORTED_LEVEL + 1}"),
        (b"\0\0\0\1\xc1", "cannot read"),
        (b"\xff" * 9, "cannot read"),
    ],
)
async def test_unsupported_snapshot_is_not_installed(state: bytes, message: str, autojump_clock: MockClock) -> None:
    last = LogId(9, 1)
    async with voter() as node:
        chunk = InstallSnapshot(
            term=1,
            leader=TWO,
            last=last,
            configuration=voters(3),
            offset=0,
            data=image_of(state, last),
            done=True,
            correlation=7,
        )
        reply = await request(node, TWO, chunk)
        assert isinstance(reply, SnapshotReply)
        assert (reply.accepted, reply.installed) == (False, False)
        assert node.server.describe().raft.snapshot is None
        (notice,) = rejections(node)
        assert message in notice.reason


def test_supported_content_is_accepted() -> None:
    entries = (
        HARMLESS,
        Entry.command(1, signed(Level(SUPPORTED_LEVEL, "0.1.0"))),
        UNSIGNED,
        Entry.command(1, b'{"level":"x"}'),
    )
    assert objection_to_entries(entries) is None
    assert objection_to_snapshot(iter([farm_at(SUPPORTED_LEVEL)])) is None


def test_escaped_level_is_detected_without_repeating_version() -> None:
    hidden = signed(encode(Level(9, "\x1b[2J, now")).replace(b'"level"', b'"\\u006cevel"'))
    objection = objection_to_entries((Entry.command(1, hidden),))
    assert objection is not None
    assert "Install a newer version of garlicfarm" in objection


@pytest.mark.parametrize("begin_s", [0.5, 3.2, 5.9])
async def test_disk_alarm_is_set_in_sixth_second_of_job(
    autojump_clock: MockClock, nursery: trio.Nursery, begin_s: float
) -> None:
    trace = EventLog("node", lambda: 0)
    alarms = Alarms(trace)

    def pending_ms() -> int:
        now_s = trio.current_time()
        return int(1000 * (now_s - begin_s)) if begin_s <= now_s < begin_s + 20 else 0

    nursery.start_soon(RaftNotices(trace, alarms, lambda _: None).run, pending_ms)
    await trio.sleep(begin_s + 4.9)
    assert alarms.active() == ()
    await trio.sleep(1.2)
    assert [each.kind for each in alarms.active()] == ["disk-unresponsive"]
    await trio.sleep(15)
    assert alarms.active() == ()


async def test_pause_of_process_does_not_raise_disk_alarm(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    alarms = Alarms(EventLog("node", lambda: 0))

    def pending_ms() -> int:
        now_s = trio.current_time()
        return int(1000 * (now_s - 0.9)) if 0.9 <= now_s < 61.2 else 0

    nursery.start_soon(RaftNotices(EventLog("node", lambda: 0), alarms, lambda _: None).run, pending_ms)
    await trio.sleep(1)
    autojump_clock.jump(60)
    for _ in range(4):
        await trio.sleep(0.5)
        assert alarms.active() == ()


async def test_alarm_names_server_until_rejections_stop(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    trace = EventLog("node", lambda: 0)
    alarms = Alarms(trace)
    content = RaftNotices(trace, alarms, {2: "berlin"}.get)
    nursery.start_soon(content.run, lambda: 0)
    await trio.sleep(1)
    content.observe(ContentRejected(TWO, "too new"))
    (alarm,) = alarms.active()
    assert "server 2 (berlin)" in alarm.text
    assert "too new" in alarm.text
    await trio.sleep(QUIET_AFTER_S / 2)
    assert alarms.active()
    await trio.sleep(QUIET_AFTER_S)
    assert alarms.active() == ()
