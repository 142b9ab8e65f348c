"""Entries that a node submits for clients: applied once per request id, regardless of repetitions."""

import json
from typing import cast

import pytest
import trio
import trio.testing
from msgspec.structs import replace
from trio.testing import MockClock

from bridge.api.control import SubmitAnswer, SubmitOutcome
from bridge.core.log.fields import BRACKETS_LIMIT
from bridge.core.log.records import Admission, Clock, Factors, Level
from bridge.node.raft.replica import LEADERS_OWN_TEXT, Replica
from bridge.node.raft.submitting import Submitting, entry_refusal, sealed
from bridge.wire.log.entries import encode
from consensus.sessions.table import RequestId
from tests.authored import signed
from tests.effort import each_case
from tests.node.farm_stage import NOW_MS, OWN, Stage, rival_report

REQUEST = RequestId("client", 0, 7)


pytestmark = pytest.mark.usefixtures("machine_clock")


def submitting(stage: Stage) -> Submitting:
    return Submitting(cast("Replica", stage.replica), stage.applied_state, stage.signer, "submit-01-1")


@pytest.mark.parametrize(
    ("entry", "expected"),
    [(b"{}", b'{"request":"client-0-7"}'), (b' { "a" :  1 } ', b' {"request":"client-0-7", "a" :  1 } ')],
)
def test_request_id_is_prepended_to_unchanged_entry(entry: bytes, expected: bytes) -> None:
    assert sealed(entry, REQUEST) == expected
    assert json.loads(expected) == {**json.loads(entry), "request": "client-0-7"}


async def test_submissions_are_numbered_by_node() -> None:
    stage = Stage()
    answers = [await submitting(stage).submit(b"{}")]
    through = submitting(stage)
    answers += [await through.submit(b"{}") for _ in range(3)]
    assert [answer.outcome for answer in answers] == [SubmitOutcome.COMMITTED] * 4
    assert [answer.index for answer in answers] == [1, 2, 3, 4]
    numbered = [f"submit-01-1-{session_start}-{number}" for session_start, number in ((0, 1), (1, 1), (1, 2), (1, 3))]
    assert [answer.request for answer in answers] == numbered
    assert [json.loads(entry)["request"] for entry in stage.log] == numbered


async def test_repeated_submission_returns_first_index_unapplied() -> None:
    stage = Stage()
    first = await submitting(stage).submit(b'{"note": 1}', REQUEST)
    await submitting(stage).submit(b"{}")
    again = await submitting(stage).submit(b'{"note": 1}', REQUEST)
    with_own_id = await submitting(stage).submit(sealed(b'{"note": 1}', REQUEST))
    assert len(stage.log) == 4
    assert {(answer.outcome, answer.index, answer.request) for answer in (first, again, with_own_id)} == {
        (SubmitOutcome.COMMITTED, 1, str(REQUEST))
    }


async def hours_later(stage: Stage) -> None:
    """Advance the voter's clock, and log time with it, by two hours."""
    later_ms = NOW_MS + 2 * 3_600_000
    await stage.append_record(replace(rival_report(), server_id=OWN, date_ms=later_ms, request=None))
    await stage.append_record(Clock(later_ms, OWN))


@pytest.mark.parametrize(
    "record", [Level(65535, "9.9.9"), Clock(NOW_MS, OWN), Admission(b"n" * 8, "node-4", server_id=4)]
)
async def test_kinds_reserved_for_leader_are_refused_at_leader(record: Level | Clock | Admission) -> None:
    """Given a client's entry of a kind that only leaders write, then the node refuses it and appends nothing."""
    stage = Stage()
    for entry in (encode(record), signed(record), encode(record).replace(b'{"', b'{"request":"x-0-1","', 1)):
        for request in (None, REQUEST):
            answer = await submitting(stage).submit(entry, request)
            assert answer == SubmitAnswer(outcome=SubmitOutcome.REFUSED, reason=LEADERS_OWN_TEXT)
    assert stage.log == []


async def test_request_of_dropped_session_is_expired() -> None:
    stage = Stage()
    await submitting(stage).submit(b"{}", REQUEST)
    await hours_later(stage)
    answer = await submitting(stage).submit(b"{}", REQUEST)
    assert (answer.outcome, answer.index) == (SubmitOutcome.EXPIRED, None)
    assert "the entry may have been applied before" in answer.reason


async def test_node_starts_new_session_after_expiry() -> None:
    stage = Stage()
    through = submitting(stage)
    await through.submit(b"{}")
    await hours_later(stage)
    assert (await through.submit(b"{}")).outcome is SubmitOutcome.EXPIRED
    answer = await through.submit(b"{}")
    assert answer.outcome is SubmitOutcome.COMMITTED
    assert answer.request == "submit-01-1-4-1"


async def test_submissions_in_flight_are_limited_by_session_size() -> None:
    stage = Stage()
    under_way: list[bytes] = []
    stage.replica.taken = under_way.append
    free = trio.Event()

    async def wait_applied(index: int) -> int:
        await free.wait()
        return index

    stage.server.wait_applied = wait_applied  # type: ignore[method-assign]  # a state machine that is late
    through = submitting(stage)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(through.submit, b"{}")
        await trio.testing.wait_all_tasks_blocked()
        assert len(under_way) == 16
        free.set()
    assert len(under_way) == 20


async def test_committed_but_refused_command_has_reason() -> None:
    stage = Stage()
    through = submitting(stage)
    command = encode(Factors(1, "formula", {"a" * 52: 1.5}))
    too_early = await through.submit(command)
    await stage.append(signed(Level(2, "0.1.0")))
    accepted = await through.submit(command)
    repeated = await through.submit(command)
    assert [answer.outcome for answer in (too_early, accepted, repeated)] == [SubmitOutcome.COMMITTED] * 3
    assert "the feature level 2" in too_early.reason
    assert accepted.reason == ""
    assert repeated.reason == "made from the log up to 1; the last accepted ones: up to 1"
    assert (too_early.index, accepted.index, repeated.index) == (1, 3, 4)


async def test_committed_but_unapplied_entry_is_unknown(autojump_clock: MockClock) -> None:
    stage = Stage()

    async def never(index: int) -> int:
        await trio.sleep_forever()
        return index

    stage.server.wait_applied = never  # type: ignore[method-assign]  # a blocked state machine
    answer = await submitting(stage).submit(b"{}", REQUEST)
    assert (answer.outcome, answer.request) == (SubmitOutcome.UNKNOWN, str(REQUEST))
    assert "committed at index 1" in answer.reason


async def test_entry_without_room_for_id_is_submitted_unchanged() -> None:
    stage = Stage()
    nested = b'{"a": ' + b"[" * BRACKETS_LIMIT + b"]" * BRACKETS_LIMIT + b"}"
    other = b'{"request": "of another make"}'
    for entry in (nested, other):
        answer = await submitting(stage).submit(entry)
        assert (answer.outcome, answer.request, stage.log[-1]) == (SubmitOutcome.COMMITTED, None, entry)
        refused = await submitting(stage).submit(entry, REQUEST)
        assert refused.outcome is SubmitOutcome.REFUSED
    assert len(stage.log) == 2


async def test_entry_with_other_request_id_is_refused() -> None:
    stage = Stage()
    answer = await submitting(stage).submit(b'{"request": "other-0-1"}', REQUEST)
    assert answer.outcome is SubmitOutcome.REFUSED
    assert "names the request other-0-1, not client-0-7" in answer.reason
    assert stage.log == []


async def test_uncommitted_submission_keeps_its_outcome_with_id() -> None:
    stage = Stage()
    stage.replica.taken = lambda _: SubmitAnswer(outcome=SubmitOutcome.UNKNOWN, reason="it is not known")
    answer = await submitting(stage).submit(b"{}", REQUEST)
    assert answer == SubmitAnswer(outcome=SubmitOutcome.UNKNOWN, reason="it is not known", request=str(REQUEST))


@each_case(
    ("entry", "reason_part"),
    [
        (b'{"level":9}', "level"),
        (b'{"removal":{"server":"node-2","removed":true}}', "garlicfarm servers remove"),
        (b'{"admission":{"name":"x"}}', "garlicfarm node approve"),
        (b'{"clock":5}', "clock"),
        (b'{"router":{}}', "router"),
        (b'{"exclusion":{"hash":"abc","excluded":true}}', "garlicfarm publish exclude"),
        (b'{"kafkaProducer":1}', "kafkaProducer"),
        (b'{"handover":{"term":1,"to":2}}', "garlicfarm transfer"),
        (b'{"removal":{"server":2,"removed":true},"cost":{"hash":"x","factor":1}}', "cost and removal"),
    ],
)
def test_object_resembling_farm_entry_is_refused_with_reason(entry: bytes, reason_part: str) -> None:
    """Without the refusal, the log would contain an object without effect, and its client would not notice."""
    refusal = entry_refusal(entry)
    assert refusal is not None
    assert reason_part in refusal


@pytest.mark.parametrize("entry", [b"{}", b'{"hello":"farm"}', b'{"levels":9}', b'{"x":{"removal":1}}'])
def test_users_own_entry_is_not_refused(entry: bytes) -> None:
    assert entry_refusal(entry) is None
