"""Updates of ØMQ Raft clients: permissions, one log entry for each reqid, and the final or redirecting reply."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from bridge.api.alarms import ZMQ_UPDATES
from bridge.api.control import SubmitAnswer, SubmitOutcome
from bridge.core.log.feature_level import REQIDS_LEVEL
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import Clock, Exclusion
from bridge.core.state.reqids import AHEAD_S, OLDEST_S, Reqids, request_text
from bridge.node.founded_farm import CurrentFarm
from bridge.node.raft.client_scopes import CommitScope
from bridge.node.raft.replica import Replica
from bridge.node.raft.submitting import Submitting, sealed
from bridge.node.zmq import updates as updates_module
from bridge.node.zmq.counters import UpdateResult
from bridge.node.zmq.listed_keys import ListedKey, ListedKeys
from bridge.node.zmq.updates import FarmUpdates
from bridge.wire.log.entries import encode
from consensus.protocols.zmq_raft import (
    UpdateAccepted,
    UpdateCommitted,
    UpdateExpired,
    UpdateRedirect,
    UpdateReply,
    UpdateRequest,
)
from tests.authored import signed
from tests.node.farm_stage import LEAF, NOW_MS, NOW_S, OWN, Stage, clock_now_ms, rival_report
from tests.node.partial_farm import partial_farm

READER, WRITER, OPERATOR, UNKNOWN = ((each * 32).hex() for each in (b"r", b"w", b"o", b"s"))
"""Public keys in the form that identifies a connection."""
KEYS = ListedKeys(
    Path("keys"),
    (
        ListedKey("reader", b"r" * 32, frozenset()),
        ListedKey("writer", b"w" * 32, frozenset({CommitScope.SUBMIT})),
        ListedKey("operator", b"o" * 32, frozenset({CommitScope.SUBMIT, CommitScope.OPERATOR})),
    ),
)
EXCLUSION = encode(Exclusion(hash_of(LEAF.base64), excluded=True))


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch, machine_clock: None) -> None:  # noqa: ARG001 - for its effect
    monkeypatch.setattr(updates_module, "clock_ms", clock_now_ms)


def reqid(counter: int = 1, second: int = NOW_S) -> bytes:
    return second.to_bytes(4, "big") + bytes(5) + counter.to_bytes(3, "big")


@dataclass
class Endpoint:
    """A node's updates over its own farm, and the replies to clients."""

    stage: Stage
    updates: FarmUpdates
    replies: list[UpdateReply] = field(default_factory=list)

    def send(self, data: bytes, request_id: bytes | None = None, user: str | None = WRITER) -> None:
        self.updates.update(UpdateRequest(request_id or reqid(), b"farm", data), user, self.replies.append)

    async def final_reply(self, data: bytes, request_id: bytes | None = None, user: str | None = WRITER) -> UpdateReply:
        self.send(data, request_id, user)
        await wait_all_tasks_blocked()
        return self.replies[-1]


def stage_at(level: int = REQIDS_LEVEL) -> Stage:
    stage = Stage()
    farm = stage.applied_state.farm
    farm.state = replace(farm.state, level=level)
    return stage


@asynccontextmanager
async def endpoint(stage: Stage | None = None, keys: ListedKeys | None = KEYS) -> AsyncIterator[Endpoint]:
    stage = stage or stage_at()
    replica = cast("Replica", stage.replica)
    submitting = Submitting(replica, stage.applied_state, stage.signer, "submit-01-1")
    farm = partial_farm(stage.applied_state, replica=replica, submitting=submitting)
    updates = FarmUpdates(CurrentFarm(farm), keys, stage.alarms)
    async with trio.open_nursery() as nursery:
        await nursery.start(updates.run)
        yield Endpoint(stage, updates)
        nursery.cancel_scope.cancel()


async def test_update_committed_as_entry_with_its_reqid() -> None:
    async with endpoint() as node:
        await node.final_reply(b'{"note": 1}')
        assert node.replies == [UpdateAccepted(reqid()), UpdateCommitted(reqid(), 1)]
        assert node.stage.log == [sealed(b'{"note": 1}', request_text(reqid()))]


async def test_repeat_gets_index_without_second_entry() -> None:
    async with endpoint() as node:
        await node.final_reply(b'{"note": 1}')
        await node.stage.append(b"{}")
        assert await node.final_reply(b'{"note": 1}') == UpdateCommitted(reqid(), 1)
        assert len(node.stage.log) == 2


async def test_repeat_of_pending_update_gets_final_reply() -> None:
    async with endpoint() as node:
        repeat_replies: list[UpdateReply] = []
        node.send(b"{}")
        node.updates.update(UpdateRequest(reqid(), b"farm", b"{}"), WRITER, repeat_replies.append)
        await wait_all_tasks_blocked()
        assert (node.replies, repeat_replies) == (
            [UpdateAccepted(reqid())],
            [UpdateAccepted(reqid()), UpdateCommitted(reqid(), 1)],
        )
        assert len(node.stage.log) == 1


async def test_update_first_logged_by_other_node_gets_its_index() -> None:
    async with endpoint() as node:
        entry = sealed(b"{}", request_text(reqid()))

        def first_by_another_node(_: bytes) -> SubmitAnswer | None:
            node.stage.replica.taken = lambda _: None
            return None

        node.stage.replica.taken = first_by_another_node
        node.send(b"{}")
        await node.stage.append(entry)
        await wait_all_tasks_blocked()
        assert node.replies[-1] == UpdateCommitted(reqid(), 1)


async def test_update_dropped_from_table_gets_own_index() -> None:
    async with endpoint() as node:
        node.stage.applied_state.farm.reqids = Reqids(limit=1)

        async def wait_while_more_is_applied(_: int) -> None:
            await node.stage.append(sealed(b"{}", request_text(reqid(2))))

        cast("Any", node.stage.replica.server).wait_applied = wait_while_more_is_applied
        assert await node.final_reply(b'{"note": 1}', reqid(1)) == UpdateCommitted(reqid(1), 1)


async def test_update_too_old_for_full_table_expired() -> None:
    async with endpoint() as node:
        node.stage.applied_state.farm.reqids = Reqids(limit=2)
        for counter in (2, 3):
            await node.final_reply(b"{}", reqid(counter))
        assert await node.final_reply(b"{}", reqid(1)) == UpdateExpired(reqid(1))
        assert len(node.stage.log) == 2


async def test_repeated_updates_stored_once_each() -> None:
    async with endpoint() as node:
        for counter in range(1, 301):
            node.send(b"{}", reqid(counter))
            node.send(b"{}", reqid(counter))
        await wait_all_tasks_blocked()
        assert len(node.stage.log) == 300
        assert sum(isinstance(each, UpdateCommitted) for each in node.replies) == 300


@pytest.mark.parametrize(
    "disturb",
    [
        lambda stage: stage.lose_quorum(),
        lambda stage: setattr(stage.replica, "taken", lambda _: SubmitAnswer(outcome=SubmitOutcome.UNKNOWN)),
        lambda stage: setattr(stage.replica, "taken", lambda _: SubmitAnswer(outcome=SubmitOutcome.BUSY)),
    ],
)
async def test_update_of_unknown_outcome_redirected(disturb: Callable[[Stage], None]) -> None:
    async with endpoint() as node:
        disturb(node.stage)
        assert await node.final_reply(b"{}") == UpdateRedirect(reqid(), None)
        node.stage.regain_quorum(OWN)
        assert await node.final_reply(b"{}") == UpdateCommitted(reqid(), 1)


@pytest.mark.parametrize("second", [NOW_S - OLDEST_S - 1, NOW_S + AHEAD_S + 3_600])
async def test_update_outside_window_expired(second: int, autojump_clock: MockClock) -> None:
    async with endpoint() as node:
        assert await node.final_reply(b"{}", reqid(1, second)) == UpdateExpired(reqid(1, second))
        assert node.stage.log == []
        assert node.updates.counters[UpdateResult.EXPIRED] == 1


async def test_current_update_redirected_while_log_time_lags(autojump_clock: MockClock) -> None:
    async with endpoint() as node:
        await trio.sleep(AHEAD_S + 10)
        now = reqid(1, NOW_S + AHEAD_S + 10)
        assert await node.final_reply(b"{}", now) == UpdateRedirect(now, None)
        later_ms = NOW_MS + (AHEAD_S + 10) * 1000
        await node.stage.append_record(replace(rival_report(), server_id=OWN, date_ms=later_ms, request=None))
        await node.stage.append_record(Clock(later_ms, OWN))
        assert await node.final_reply(b"{}", now) == UpdateCommitted(now, 3)


async def test_updates_below_reqid_level_redirected_with_alarm() -> None:
    async with endpoint(stage_at(REQIDS_LEVEL - 1)) as node:
        assert await node.final_reply(b"{}") == UpdateRedirect(reqid(), None)
        assert node.stage.alarm(ZMQ_UPDATES.kind) is None, "a starting node has not applied its log"
        await node.stage.append(b"{}")
        assert await node.final_reply(b"{}") == UpdateRedirect(reqid(), None)
        assert "updates need level 3" in (node.stage.alarm(ZMQ_UPDATES.kind) or "")
        node.stage.applied_state.farm.state = replace(node.stage.applied_state.state, level=REQIDS_LEVEL)
        assert await node.final_reply(b"{}") == UpdateCommitted(reqid(), 2)
        assert node.stage.alarm(ZMQ_UPDATES.kind) is None


async def test_update_at_read_only_endpoint_expired() -> None:
    async with endpoint(keys=None) as node:
        node.send(b"{}", user=None)
        assert node.replies == [UpdateExpired(reqid())]
        assert node.updates.counters[UpdateResult.READ_ONLY] == 1


@pytest.mark.parametrize(
    ("user", "entry", "reason"),
    [
        (READER, b"{}", UpdateResult.OUT_OF_SCOPE),
        (UNKNOWN, b"{}", UpdateResult.OUT_OF_SCOPE),
        (None, b"{}", UpdateResult.OUT_OF_SCOPE),
        (WRITER, EXCLUSION, UpdateResult.OUT_OF_SCOPE),
        (OPERATOR, b"[]", UpdateResult.INVALID),
        (OPERATOR, b"\xff", UpdateResult.INVALID),
        (OPERATOR, encode(Clock(NOW_MS, OWN)), UpdateResult.INVALID),
        (OPERATOR, b'{"request":"client-0-1"}', UpdateResult.INVALID),
        (WRITER, signed(EXCLUSION), UpdateResult.INVALID),
    ],
    # The entries contain a leaf that is random in each process; test names must not.
    ids=[
        "reader",
        "unknown key",
        "without a key",
        "writer, an exclusion",
        "array",
        "not UTF-8",
        "clock entry",
        "request in other form",
        "already signed exclusion",
    ],
)
async def test_update_out_of_scope_or_invalid_expired(user: str | None, entry: bytes, reason: UpdateResult) -> None:
    async with endpoint() as node:
        assert await node.final_reply(entry, user=user) == UpdateExpired(reqid())
        assert node.stage.log == []
        assert node.updates.counters[reason] == 1


async def test_update_within_scope_signed_by_node() -> None:
    async with endpoint() as node:
        assert await node.final_reply(EXCLUSION, user=OPERATOR) == UpdateCommitted(reqid(), 1)
        assert node.stage.applied_state.state.weights.excluded == (hash_of(LEAF.base64),)
        assert json.loads(node.stage.log[0])["request"] == request_text(reqid())


async def test_entry_signed_by_client_stored_unchanged() -> None:
    async with endpoint() as node:
        entry = signed(sealed(EXCLUSION, request_text(reqid())), 2)
        assert await node.final_reply(entry) == UpdateCommitted(reqid(), 1)
        assert node.stage.log == [entry]
        assert node.stage.applied_state.state.weights.excluded == (hash_of(LEAF.base64),)


async def test_fault_in_update_ends_only_that_update(caplog: pytest.LogCaptureFixture) -> None:
    async with endpoint() as node:
        node.stage.replica.taken = lambda _: cast("SubmitAnswer", 1 // 0)
        assert await node.final_reply(b"{}", reqid(1)) == UpdateAccepted(reqid(1))
        node.stage.replica.taken = lambda _: None
        assert isinstance(await node.final_reply(b"{}", reqid(1)), UpdateCommitted)
    assert "ZeroDivisionError" in caplog.text
