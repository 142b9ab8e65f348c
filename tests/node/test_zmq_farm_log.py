"""The farm's log as ØMQ Raft clients see it: index for index, each entry with a reqid, the compacted part as JSON."""

import json
from dataclasses import replace
from typing import cast

import pytest

from bridge.core.log.feature_level import REQIDS_LEVEL
from bridge.core.log.records import Clock
from bridge.core.state.reqids import Reqids, request_text
from bridge.node.events.alarms import Alarms
from bridge.node.founded_farm import CurrentFarm
from bridge.node.raft.replica import Replica
from bridge.node.raft.submitting import sealed
from bridge.node.zmq.farm_log import FarmLog, as_clients_see, made_reqid
from bridge.node.zmq.updates import FarmUpdates
from consensus.core.entry_data import configuration_entry, no_op_entry
from consensus.core.model import Entry, EntryKind, LogId, NoOp, SnapshotDescription
from consensus.protocols.zmq_raft import ChangeRefused, ChangeReply, ChangeRequest, Peer
from consensus.server.errors import ServerStoppedError
from consensus.storage import ImageWriter
from tests.node.farm_stage import CONFIGURATION, NOW_MS, NOW_S, OWN, Stage, machine_clock, rival_report
from tests.node.partial_farm import partial_farm

URL, OTHER_URL = "tcp://127.0.0.1:7670", "tcp://127.0.0.2:7670"
REQID = NOW_S.to_bytes(4, "big") + b"\1\2\3\4\5\6\7\x08"


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_clock(monkeypatch)


def log_of(stage: Stage | None, peers: tuple[str, ...] = ()) -> FarmLog:
    farm = None if stage is None else partial_farm(stage.applied_state, replica=cast("Replica", stage.replica))
    current = CurrentFarm(farm)
    return FarmLog(current, URL, peers, "tcp://127.0.0.1:7671", FarmUpdates(current, None, cast("Alarms", None)))


def with_updates() -> Stage:
    stage = Stage()
    farm = stage.applied_state.farm
    farm.state = replace(farm.state, level=REQIDS_LEVEL)
    return stage


async def test_each_application_entry_is_read_as_it_is_with_a_reqid_of_log_time_and_index() -> None:
    stage = Stage()
    for entry in (b'{"note": 1}', b"not \xff JSON"):
        await stage.append(entry)
    entries = await log_of(stage).read(1, 10, 1_000)
    assert [each.data[12:] for each in entries] == [b'{"note": 1}', b"not \xff JSON"]
    assert [each.data[:12] for each in entries] == [NOW_S.to_bytes(4, "big") + bytes(7) + bytes([n]) for n in (1, 2)]
    assert {each.kind for each in entries} == {EntryKind.COMMAND}


async def test_an_update_is_read_under_its_own_reqid_and_its_copies_are_checkpoints() -> None:
    stage = with_updates()
    entry = sealed(b'{"note": 1}', request_text(REQID))
    for each in (entry, entry, b"{}"):
        await stage.append(each)
    first, copy, last = await log_of(stage).read(1, 10, 1_000)
    assert first.data == REQID + entry
    assert copy.kind is EntryKind.NO_OP
    assert last.data[:12] == made_reqid(3, NOW_MS)


async def test_a_copy_is_a_checkpoint_also_when_so_many_came_after_it_that_its_index_is_forgotten() -> None:
    stage = with_updates()
    stage.applied_state.farm.reqids = Reqids(skipped_max=4)
    entry = sealed(b'{"note": 1}', request_text(REQID))
    for _ in range(9):
        await stage.append(entry)
    first, *copies = await log_of(stage).read(1, 10, 10_000)
    assert first.data == REQID + entry
    assert [each.kind for each in copies] == [EntryKind.NO_OP] * 8


async def test_what_is_not_an_applications_is_a_checkpoint_of_its_term() -> None:
    applied_state = Stage().applied_state
    for entry in (configuration_entry(4, CONFIGURATION), no_op_entry(4, NoOp(OWN)), Entry.command(4, b"")):
        assert as_clients_see(1, entry, applied_state) == no_op_entry(4, NoOp())


def test_a_reqid_is_made_for_any_index_and_time() -> None:
    assert made_reqid(2**63 - 1, None) == bytes(4) + (2**63 - 1).to_bytes(8, "big")
    assert len(made_reqid(1, 2**53)) == len(made_reqid(1, -5)) == 12


async def test_a_node_calls_itself_the_leader_of_what_it_has_applied() -> None:
    stage = Stage()
    await stage.append(b"{}")
    await stage.append_record(rival_report())
    found = log_of(stage, (OTHER_URL, URL)).describe()
    assert (found.is_leader, found.leader) == (True, URL)
    assert found.peers == (Peer(URL, URL), Peer(OTHER_URL, OTHER_URL))
    assert (found.first_index, found.commit, found.last_applied, found.last_index) == (1, 2, 2, 2)
    assert (found.prune_index, found.snapshot_bytes) == (0, 0)


async def test_the_prune_index_is_where_log_time_was_7_h_45_min_ago() -> None:
    stage = Stage()
    await stage.append(b"{}")
    log = log_of(stage)
    assert log.describe().prune_index == 0
    for hours in (4, 8, 12):
        later_ms = NOW_MS + hours * 3_600_000
        await stage.append_record(replace(rival_report(), server_id=OWN, date_ms=later_ms, request=None))
        await stage.append_record(Clock(later_ms, OWN))
    assert log.describe().prune_index == 3, "the clock entry of four hours"


async def test_without_a_farm_no_leader_and_no_entry_is_known() -> None:
    log = log_of(None)
    assert (log.describe().is_leader, log.describe().leader, log.broadcast_url()) == (False, None, None)
    with pytest.raises(ServerStoppedError, match="not a server of a farm yet"):
        await log.read(1, 1, 1)
    with pytest.raises(ServerStoppedError):
        await log.read_snapshot(0, 1)


async def test_beyond_what_is_applied_nothing_is_read() -> None:
    stage = Stage()
    await stage.append(b"{}")
    assert await log_of(stage).read(2, 10, 1_000) == ()


async def test_the_compacted_part_is_a_document_of_the_state_at_the_snapshots_last_entry() -> None:
    stage = Stage()
    await stage.append_record(rival_report())
    log = log_of(stage)
    assert await log.read_snapshot(0, 100) is None
    compact(stage)
    await stage.append(b"{}")
    chunk = await log.read_snapshot(0, 100)
    assert chunk is not None
    document = chunk.data
    while len(document) < chunk.total_bytes:
        chunk = await log.read_snapshot(len(document), 100)
        assert chunk is not None
        assert chunk.offset == len(document)
        document += chunk.data
    beyond = await log.read_snapshot(10**9, 100)
    assert beyond is not None
    assert (beyond.offset, beyond.data) == (len(document), b"")
    found = json.loads(document)
    assert (chunk.last, found["index"], found["term"]) == (LogId(1, 1), 1, 1)
    assert found["logTimeMs"] == NOW_MS
    assert [each["raftId"] for each in found["servers"]] == [1, 2, 3]
    assert [each["publishedS"] for each in found["masters"]] == [None]
    assert (log.describe().first_index, log.describe().snapshot_bytes) == (2, len(document))


async def test_a_newer_snapshot_gives_a_newer_document() -> None:
    stage = Stage()
    await stage.append(b"{}")
    compact(stage)
    log = log_of(stage)
    first = await log.read_snapshot(0, 10_000)
    await stage.append(b"{}")
    compact(stage)
    second = await log.read_snapshot(0, 10_000)
    assert first is not None
    assert second is not None
    assert (first.last.index, second.last.index) == (1, 2)


def test_the_members_of_a_farm_are_no_matter_of_this_protocol() -> None:
    answers: list[ChangeReply] = []
    log_of(None).change(ChangeRequest(REQID, b"farm", (Peer(URL, URL),)), answers.append)
    (answer,) = answers
    assert isinstance(answer, ChangeRefused)
    assert "farm's own rules" in answer.message


def compact(stage: Stage) -> None:
    """The state of now becomes the stored snapshot."""
    last = LogId(len(stage.log), 1)
    writer = ImageWriter(last, CONFIGURATION)
    image = writer.begin() + b"".join(map(writer.blocks, stage.applied_state.snapshot())) + writer.end()
    stage.server.image = image
    stage.server.snapshot = SnapshotDescription(last, CONFIGURATION, len(image), writer.description.checksum)
