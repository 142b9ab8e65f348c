"""Updates by ØMQ Raft clients: who may, once for each reqid, and an answer that ends the request or has it repeated."""

# ruff: noqa: ARG001 - the clock works by being asked for

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio
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
from tests.node.farm_stage import LEAF, NOW_MS, NOW_S, OWN, Stage, clock_now_ms, machine_clock, rival_report
from tests.node.partial_farm import partial_farm

READER, WRITER, OPERATOR, STRANGER = ((each * 32).hex() for each in (b"r", b"w", b"o", b"s"))
"""Public keys, as a connection is known by them."""
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
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_clock(monkeypatch)
    monkeypatch.setattr(updates_module, "clock_ms", clock_now_ms)


def reqid(counter: int = 1, second: int = NOW_S) -> bytes:
    return second.to_bytes(4, "big") + bytes(5) + counter.to_bytes(3, "big")


@dataclass
class Endpoint:
    """A node's updates over a farm of its own, and what clients were told."""

    stage: Stage
    updates: FarmUpdates
    told: list[UpdateReply] = field(default_factory=list)

    def send(self, data: bytes, request_id: bytes | None = None, user: str | None = WRITER) -> None:
        """One request."""
        self.updates.update(UpdateRequest(request_id or reqid(), b"farm", data), user, self.told.append)

    async def ends(self, data: bytes, request_id: bytes | None = None, user: str | None = WRITER) -> UpdateReply:
        """The final answer."""
        self.send(data, request_id, user)
        await wait_all_tasks_blocked()
        return self.told[-1]


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


async def test_an_update_is_accepted_and_then_committed_with_its_reqid_in_front() -> None:
    async with endpoint() as node:
        await node.ends(b'{"note": 1}')
        assert node.told == [UpdateAccepted(reqid()), UpdateCommitted(reqid(), 1)]
        assert node.stage.log == [sealed(b'{"note": 1}', request_text(reqid()))]


async def test_a_repetition_is_told_the_place_of_the_first_without_a_second_entry() -> None:
    async with endpoint() as node:
        await node.ends(b'{"note": 1}')
        await node.stage.append(b"{}")
        assert await node.ends(b'{"note": 1}') == UpdateCommitted(reqid(), 1)
        assert len(node.stage.log) == 2


async def test_a_repetition_meanwhile_is_accepted_and_gets_the_final_answer_once() -> None:
    async with endpoint() as node:
        again: list[UpdateReply] = []
        node.send(b"{}")
        node.updates.update(UpdateRequest(reqid(), b"farm", b"{}"), WRITER, again.append)
        await wait_all_tasks_blocked()
        assert (node.told, again) == ([UpdateAccepted(reqid())], [UpdateAccepted(reqid()), UpdateCommitted(reqid(), 1)])
        assert len(node.stage.log) == 1


async def test_a_copy_that_another_node_submitted_meanwhile_is_told_by_its_first_place() -> None:
    async with endpoint() as node:
        entry = sealed(b"{}", request_text(reqid()))

        def first_by_another_node(command: bytes) -> SubmitAnswer | None:
            node.stage.replica.taken = lambda _: None
            return None

        node.stage.replica.taken = first_by_another_node
        node.send(b"{}")
        await node.stage.append(entry)
        await wait_all_tasks_blocked()
        assert node.told[-1] == UpdateCommitted(reqid(), 1)


async def test_what_a_full_table_forgets_before_the_answer_is_committed_at_its_own_index() -> None:
    async with endpoint() as node:
        node.stage.applied_state.farm.reqids = Reqids(limit=1)

        async def wait_while_more_is_applied(_: int) -> None:
            await node.stage.append(sealed(b"{}", request_text(reqid(2))))

        cast("Any", node.stage.replica.server).wait_applied = wait_while_more_is_applied
        assert await node.ends(b'{"note": 1}', reqid(1)) == UpdateCommitted(reqid(1), 1)


async def test_what_a_full_table_would_forget_at_once_is_expired_and_not_in_the_log() -> None:
    async with endpoint() as node:
        node.stage.applied_state.farm.reqids = Reqids(limit=2)
        for counter in (2, 3):
            await node.ends(b"{}", reqid(counter))
        assert await node.ends(b"{}", reqid(1)) == UpdateExpired(reqid(1))
        assert len(node.stage.log) == 2


async def test_a_thousand_updates_and_their_repetitions_stand_in_the_log_once_each() -> None:
    async with endpoint() as node:
        for counter in range(1, 301):
            node.send(b"{}", reqid(counter))
            node.send(b"{}", reqid(counter))
        await wait_all_tasks_blocked()
        assert len(node.stage.log) == 300
        assert sum(isinstance(each, UpdateCommitted) for each in node.told) == 300


@pytest.mark.parametrize(
    "spoil",
    [
        lambda stage: stage.lose_quorum(),
        lambda stage: setattr(stage.replica, "taken", lambda _: SubmitAnswer(outcome=SubmitOutcome.UNKNOWN)),
        lambda stage: setattr(stage.replica, "taken", lambda _: SubmitAnswer(outcome=SubmitOutcome.BUSY)),
    ],
)
async def test_what_may_yet_be_committed_is_to_be_repeated(spoil: Callable[[Stage], None]) -> None:
    async with endpoint() as node:
        spoil(node.stage)
        assert await node.ends(b"{}") == UpdateRedirect(reqid(), None)
        node.stage.regain_quorum(OWN)
        assert await node.ends(b"{}") == UpdateCommitted(reqid(), 1)


@pytest.mark.parametrize("second", [NOW_S - OLDEST_S - 1, NOW_S + AHEAD_S + 3_600])
async def test_an_update_out_of_its_time_has_expired(second: int, autojump_clock: MockClock) -> None:
    async with endpoint() as node:
        assert await node.ends(b"{}", reqid(1, second)) == UpdateExpired(reqid(1, second))
        assert node.stage.log == []
        assert node.updates.counters[UpdateResult.EXPIRED] == 1


async def test_while_log_time_stands_still_an_update_of_now_waits(autojump_clock: MockClock) -> None:
    async with endpoint() as node:
        await trio.sleep(AHEAD_S + 10)
        now = reqid(1, NOW_S + AHEAD_S + 10)
        assert await node.ends(b"{}", now) == UpdateRedirect(now, None)
        later_ms = NOW_MS + (AHEAD_S + 10) * 1000
        await node.stage.append_record(replace(rival_report(), server_id=OWN, date_ms=later_ms, request=None))
        await node.stage.append_record(Clock(later_ms, OWN))
        assert await node.ends(b"{}", now) == UpdateCommitted(now, 3)


async def test_below_the_level_of_reqids_updates_wait_with_an_alarm() -> None:
    async with endpoint(stage_at(REQIDS_LEVEL - 1)) as node:
        assert await node.ends(b"{}") == UpdateRedirect(reqid(), None)
        assert "updates need level 3" in (node.stage.alarm(ZMQ_UPDATES.kind) or "")
        node.stage.applied_state.farm.state = replace(node.stage.applied_state.state, level=REQIDS_LEVEL)
        assert await node.ends(b"{}") == UpdateCommitted(reqid(), 1)
        assert node.stage.alarm(ZMQ_UPDATES.kind) is None


async def test_at_an_endpoint_that_takes_no_updates_each_ends_at_once() -> None:
    async with endpoint(keys=None) as node:
        node.send(b"{}", user=None)
        assert node.told == [UpdateExpired(reqid())]
        assert node.updates.counters[UpdateResult.READ_ONLY] == 1


@pytest.mark.parametrize(
    ("user", "entry", "reason"),
    [
        (READER, b"{}", UpdateResult.OUT_OF_SCOPE),
        (STRANGER, b"{}", UpdateResult.OUT_OF_SCOPE),
        (None, b"{}", UpdateResult.OUT_OF_SCOPE),
        (WRITER, EXCLUSION, UpdateResult.OUT_OF_SCOPE),
        (OPERATOR, b"[]", UpdateResult.INVALID),
        (OPERATOR, b"\xff", UpdateResult.INVALID),
        (OPERATOR, encode(Clock(NOW_MS, OWN)), UpdateResult.INVALID),
        (OPERATOR, b'{"request":"client-0-1"}', UpdateResult.INVALID),
        (WRITER, signed(EXCLUSION), UpdateResult.INVALID),
    ],
    # The leaf is made at random in each process, and a test is known by its name.
    ids=[
        "reader",
        "stranger",
        "without a key",
        "writer, an exclusion",
        "no object",
        "no text",
        "clock entry",
        "request of another form",
        "exclusion signed before",
    ],
)
async def test_what_a_key_may_never_have_committed_ends_at_once(
    user: str | None, entry: bytes, reason: UpdateResult
) -> None:
    async with endpoint() as node:
        assert await node.ends(entry, user=user) == UpdateExpired(reqid())
        assert node.stage.log == []
        assert node.updates.counters[reason] == 1


async def test_what_acts_on_the_farm_is_signed_by_the_node_for_a_key_with_that_scope() -> None:
    async with endpoint() as node:
        assert await node.ends(EXCLUSION, user=OPERATOR) == UpdateCommitted(reqid(), 1)
        assert node.stage.applied_state.state.weights.excluded == (hash_of(LEAF.base64),)
        assert json.loads(node.stage.log[0])["request"] == request_text(reqid())


async def test_an_entry_with_a_proof_of_its_own_names_its_reqid_before_it_is_signed() -> None:
    async with endpoint() as node:
        entry = signed(sealed(EXCLUSION, request_text(reqid())), 2)
        assert await node.ends(entry) == UpdateCommitted(reqid(), 1)
        assert node.stage.log == [entry]
        assert node.stage.applied_state.state.weights.excluded == (hash_of(LEAF.base64),)
