"""Replies of the endpoint to clients of ØMQ Raft: equal to the recorded replies, and none to invalid messages."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random, randrange
from typing import Any, Final

import pytest
import trio
import trio.testing

from consensus.protocols.zmq_raft.counters import EndpointDrop
from consensus.protocols.zmq_raft.endpoint.client_endpoint import EndpointOptions
from consensus.protocols.zmq_raft.wire.codec import encode_request
from consensus.protocols.zmq_raft.wire.entries import read_entries
from consensus.protocols.zmq_raft.wire.messages import (
    AppendEntriesRpc,
    ChangeAccepted,
    ChangeCommitted,
    ChangeExpired,
    ChangeRedirect,
    ChangeRefused,
    ChangeReply,
    ChangeRequest,
    ConfigReply,
    ConfigRequest,
    CustomReply,
    CustomRequest,
    InstallSnapshotRpc,
    LogInfoReply,
    LogInfoRequest,
    MalformedPeers,
    Peer,
    RequestVoteRpc,
    UpdateAccepted,
    UpdateCommitted,
    UpdateExpired,
    UpdateRedirect,
    UpdateReply,
    UpdateRequest,
    UrlReply,
    UrlRequest,
)
from consensus.server.errors import ServerStoppedError
from tests.node.zmq_served_log import CLIENT, IDENT, PEERS, FakeLog, Stage, serving, update_entry

VECTORS: Final = json.loads((Path(__file__).parents[1] / "vectors" / "zmq-raft.json").read_text(encoding="utf-8"))
RECORDED: Final[list[dict[str, Any]]] = VECTORS["client_requests"]
LOG: Final = next(vector for vector in RECORDED if vector["name"] == "RequestEntries from 0, no count")

REQUEST_ID: Final = b"id-of-12-byt"
UPDATE: Final = UpdateRequest(REQUEST_ID, b"", b"data")
CHANGE: Final = ChangeRequest(REQUEST_ID, b"", (*PEERS, Peer("4", "tcp://127.0.0.1:8347")))


def recorded_log(name: str) -> FakeLog:
    """Return the log of the peer that received the request `name` in the recorded run."""
    entries = read_entries([bytes.fromhex(frame) for frame in LOG["responses"][0][4:]])

    def update(request: UpdateRequest) -> UpdateReply:
        if not log.is_leader:
            return UpdateRedirect(request.request_id, log.leader)
        request_ids = [entry.data[:12] for entry in log.entries]
        if request.request_id in request_ids:
            return UpdateCommitted(request.request_id, request_ids.index(request.request_id) + 1)
        return UpdateExpired(request.request_id)

    def change(request: ChangeRequest) -> ChangeReply:
        if log.is_leader and isinstance(request.peers, MalformedPeers):
            return ChangeRefused(request.request_id, request.peers.name, request.peers.message)
        return ChangeRedirect(request.request_id, log.leader)

    log = FakeLog(list(entries[:6] if "LogInfo" in name else entries), is_leader="follower" not in name)
    log.first_update_answer = update
    log.first_change_answer = change
    return log


@pytest.mark.parametrize("vector", [pytest.param(vector, id=vector["name"]) for vector in RECORDED])
async def test_recorded_request_gets_recorded_replies(vector: dict[str, Any]) -> None:
    async with serving(recorded_log(vector["name"])) as stage:
        stage.endpoint.receive(CLIENT, [bytes.fromhex(frame) for frame in vector["request"]])
        await trio.testing.wait_all_tasks_blocked()
        assert [[frame.hex() for frame in frames] for to, frames in stage.sent if to == CLIENT] == vector["responses"]
        assert stage.endpoint.under_way == 0


@pytest.mark.parametrize("is_leader", [True, False])
def test_peer_returns_configuration_and_log_info(*, is_leader: bool) -> None:
    stage = Stage(FakeLog([update_entry(1)], is_leader=is_leader))
    stage.ask(ConfigRequest(b"\x01", b""))
    stage.ask(LogInfoRequest(b"\x02", b""))
    assert stage.replies() == [
        ConfigReply(request_id=b"\x01", is_leader=is_leader, leader="2", peers=PEERS),
        LogInfoReply(
            request_id=b"\x02",
            is_leader=is_leader,
            leader="2",
            term=1,
            first_index=1,
            last_applied=1,
            commit=1,
            last_index=1,
            snapshot_bytes=0,
            prune_index=0,
        ),
    ]


def test_broadcast_url_returned_if_known() -> None:
    log = FakeLog()
    stage = Stage(log)
    stage.ask(UrlRequest(b"\x01", b""))
    log.url = None
    stage.ask(UrlRequest(b"\x01", b""))
    assert stage.replies() == [UrlReply(b"\x01", "tcp://127.0.0.1:8048"), UrlReply(b"\x01", None)]


def test_update_gets_replies_on_acceptance_and_commit() -> None:
    log = FakeLog(first_update_answer=lambda request: UpdateAccepted(request.request_id))
    stage = Stage(log)
    stage.ask(UPDATE, user="alice")
    assert stage.replies() == [UpdateAccepted(REQUEST_ID)]
    (received,) = log.updates
    assert (received.request, received.user) == (UpdateRequest(REQUEST_ID, IDENT, b"data"), "alice")
    assert stage.endpoint.under_way == 1
    received.answer(UpdateCommitted(REQUEST_ID, 8))
    assert stage.replies() == [UpdateCommitted(REQUEST_ID, 8)]
    assert stage.endpoint.under_way == 0


async def test_accepted_sent_only_for_slow_or_repeated_update(autojump_clock: trio.testing.MockClock) -> None:
    """A slow update gets the reply "accepted" after `accepted_after_ms`, and a repeated update immediately."""
    log = FakeLog(first_update_answer=lambda request: UpdateAccepted(request.request_id))
    slow = UpdateRequest(b"late-request", b"", b"data")
    async with serving(log, EndpointOptions(accepted_after_ms=100)) as stage:
        for request in (UPDATE, slow):
            stage.ask(request)
        log.updates[0].answer(UpdateCommitted(REQUEST_ID, 8))
        assert stage.replies() == [UpdateCommitted(REQUEST_ID, 8)]
        await trio.sleep(0.099)
        assert stage.replies() == []
        await trio.sleep(0.002)
        assert stage.replies() == [UpdateAccepted(slow.request_id)]
        log.updates[1].answer(UpdateCommitted(slow.request_id, 9))
        stage.replies()
        for _ in range(2):
            stage.ask(UPDATE)
        assert stage.replies() == [UpdateAccepted(REQUEST_ID)]
        log.updates[-1].answer(UpdateCommitted(REQUEST_ID, 8))
        assert stage.replies() == [UpdateCommitted(REQUEST_ID, 8)]


@pytest.mark.parametrize("final", [UpdateRedirect(REQUEST_ID, None), UpdateExpired(REQUEST_ID)])
def test_refused_update_not_pending(final: UpdateReply) -> None:
    stage = Stage(FakeLog(first_update_answer=lambda _: final))
    stage.ask(UPDATE)
    assert stage.replies() == [final]
    assert stage.endpoint.under_way == 0


def test_update_ignored_by_log_not_pending() -> None:
    stage = Stage(FakeLog())
    stage.ask(UPDATE)
    assert stage.replies() == []
    assert stage.endpoint.under_way == 0


def test_repeated_update_gets_one_final_reply_at_last_sender() -> None:
    log = FakeLog(first_update_answer=lambda request: UpdateAccepted(request.request_id))
    stage = Stage(log)
    stage.ask(UPDATE)
    stage.ask(UPDATE)
    stage.ask(UPDATE, identity=b"reconnected")
    assert stage.replies() == [UpdateAccepted(REQUEST_ID)] * 2
    assert stage.endpoint.under_way == 1
    for received in log.updates:
        received.answer(UpdateCommitted(REQUEST_ID, 8))
    assert stage.replies() == []
    assert stage.replies(b"reconnected") == [UpdateAccepted(REQUEST_ID), UpdateCommitted(REQUEST_ID, 8)]
    assert stage.endpoint.under_way == 0


@pytest.mark.parametrize("identity", [CLIENT, b"reconnected"])
def test_repeat_ignored_by_log_still_gets_final_reply(identity: bytes) -> None:
    log = FakeLog(first_update_answer=lambda request: UpdateAccepted(request.request_id))
    stage = Stage(log)
    stage.ask(UPDATE)
    log.first_update_answer = None
    stage.ask(UPDATE, identity)
    log.updates[0].answer(UpdateCommitted(REQUEST_ID, 8))
    assert stage.replies(identity)[-1] == UpdateCommitted(REQUEST_ID, 8)


def test_repeat_from_new_connection_frees_quota_of_old_one() -> None:
    log = FakeLog(first_update_answer=lambda request: UpdateAccepted(request.request_id))
    stage = Stage(log, EndpointOptions(unanswered_of_client=1))
    stage.ask(UPDATE)
    stage.ask(UPDATE, b"reconnected")
    stage.ask(UpdateRequest(b"another-id--", b"", b"x"))
    assert (stage.endpoint.under_way, stage.endpoint.counts) == (2, {})


def test_change_gets_replies_despite_update_with_same_id() -> None:
    log = FakeLog(
        first_update_answer=lambda request: UpdateAccepted(request.request_id),
        first_change_answer=lambda request: ChangeAccepted(request.request_id),
    )
    stage = Stage(log)
    stage.ask(UPDATE, identity=b"other")
    stage.ask(CHANGE)
    assert stage.endpoint.under_way == 2
    (received,) = log.changes
    assert received.request == ChangeRequest(REQUEST_ID, IDENT, CHANGE.peers)
    received.answer(ChangeCommitted(REQUEST_ID, 9))
    assert stage.replies() == [ChangeAccepted(REQUEST_ID), ChangeCommitted(REQUEST_ID, 9)]
    assert stage.endpoint.under_way == 1


def test_malformed_peer_list_passed_to_log() -> None:
    log = FakeLog(first_change_answer=lambda request: ChangeExpired(request.request_id))
    stage = Stage(log)
    stage.endpoint.receive(CLIENT, [REQUEST_ID, b"&", IDENT, b"\xa1x"])
    (received,) = log.changes
    assert received.request == ChangeRequest(REQUEST_ID, IDENT, MalformedPeers("TypeError", "peers must be an array"))
    assert stage.sent == [(CLIENT, [REQUEST_ID, b"\x04"])]


def test_updates_beyond_limit_ignored() -> None:
    log = FakeLog(first_update_answer=lambda request: UpdateAccepted(request.request_id))
    stage = Stage(log, EndpointOptions(unanswered=3, unanswered_of_client=2))
    for number, identity in enumerate((b"1", b"1", b"1", b"2", b"2")):
        stage.ask(UpdateRequest(b"%012d" % number, b"", b"x"), identity)
    assert [received.request.request_id for received in log.updates] == [b"%012d" % number for number in (0, 1, 3)]
    assert stage.endpoint.counts == {EndpointDrop.TOO_MANY_UPDATES: 2}
    # A pending update may be repeated; after its final reply there is room for another.
    stage.ask(UpdateRequest(b"%012d" % 0, b"", b"x"), b"1")
    assert len(log.updates) == 4
    log.updates[0].answer(UpdateCommitted(b"%012d" % 0, 1))
    stage.ask(UpdateRequest(b"%012d" % 5, b"", b"x"), b"1")
    assert stage.endpoint.under_way == 3


def test_custom_type_passed_to_service_if_supported() -> None:
    def echo(request: CustomRequest, answer: Callable[[CustomReply], object]) -> None:
        answer(CustomReply(request.request_id, (request.message_type, *request.frames)))

    request = CustomRequest(request_id=b"\x01", message_type=b"get", ident=b"", frames=(b"key",))
    stage = Stage(FakeLog(), custom=echo)
    stage.ask(request)
    assert stage.replies() == [CustomReply(b"\x01", (b"get", b"key"))]
    unsupported = Stage(FakeLog())
    unsupported.ask(request)
    assert unsupported.sent == []
    assert unsupported.endpoint.counts == {EndpointDrop.UNHANDLED_TYPE: 1}


@pytest.mark.parametrize(
    "message",
    [
        RequestVoteRpc(message_id=1, ident=IDENT, candidate="1", term=1, last_index=1, last_term=1),
        AppendEntriesRpc(message_id=1, ident=IDENT, leader="1", term=1, previous_index=1, previous_term=1, commit=1),
        InstallSnapshotRpc(
            message_id=1, ident=IDENT, leader="1", term=1, last_index=1, last_term=1, offset=0, total_bytes=1, data=b"x"
        ),
    ],
)
def test_peer_messages_dropped_without_reply(message: RequestVoteRpc | AppendEntriesRpc | InstallSnapshotRpc) -> None:
    stage = Stage(FakeLog())
    stage.endpoint.receive(CLIENT, encode_request(message))
    assert stage.sent == []
    assert stage.endpoint.counts == {EndpointDrop.PEER_MESSAGE: 1}


def test_unencodable_reply_not_sent() -> None:
    log = FakeLog(leader="x" * 1_000)
    stage = Stage(log)
    stage.ask(ConfigRequest(b"\x01", b""))
    assert stage.sent == []
    assert stage.endpoint.counts == {EndpointDrop.REPLY_UNENCODABLE: 1}


async def test_stopped_log_ends_stream_without_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail_read(*_: int) -> None:
        await trio.lowlevel.checkpoint()
        raise ServerStoppedError("stopped")

    log = FakeLog([update_entry(1)])
    monkeypatch.setattr(log, "read", fail_read)
    async with serving(log) as stage:
        stage.endpoint.receive(CLIENT, [b"\x01", b"<", IDENT, b"\x00"])
        await trio.testing.wait_all_tasks_blocked()
        assert stage.sent == []


def invalid_frames(random: Random) -> list[bytes]:
    """Return frames that resemble a request but are never valid."""
    frames = [random.randbytes(random.randrange(0, 20)) for _ in range(random.randrange(0, 8))]
    match random.randrange(4):
        case 0:
            return frames
        case 1:
            return [b"\x01", random.randbytes(1), b"another cluster", *frames]
        case 2:
            return [b"\x01", random.choice((b"", b"!", b"?", b"+", b"$")), IDENT, *frames]
        case _:
            return [random.randbytes(13), random.choice((b"^", b"=", b"&", b"<", b"%", b"*")), IDENT, *frames]


def test_flood_of_invalid_messages_ignored() -> None:
    seed = randrange(2**32)
    random = Random(seed)
    log = FakeLog([update_entry(1)])
    stage = Stage(log)
    for _ in range(5_000):
        stage.endpoint.receive(random.randbytes(5), invalid_frames(random))
    assert stage.sent == [], f"seed {seed}"
    assert (log.updates, log.changes, stage.endpoint.under_way) == ([], [], 0), f"seed {seed}"
    assert sum(stage.endpoint.counts.values()) == 5_000
