"""The farm's log for ØMQ Raft clients: each entry with its index and a reqid, the compacted part as JSON."""

import json
from collections.abc import Iterable
from typing import cast

import pytest
from msgspec.structs import replace

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
from consensus.protocols.zmq_raft import ChangeRefused, ChangeReply, ChangeRequest, Peer, SnapshotUnreadableError
from consensus.server.errors import ServerStoppedError
from consensus.storage import ImageWriter
from tests.node.farm_stage import CONFIGURATION, NOW_MS, NOW_S, OWN, Stage, rival_report
from tests.node.partial_farm import partial_farm

URL, OTHER_URL = "tcp://127.0.0.1:7670", "tcp://127.0.0.2:7670"
REQID = NOW_S.to_bytes(4, "big") + b"\1\2\3\4\5\6\7\x08"


pytestmark = pytest.mark.usefixtures("machine_clock")


def farm_log(stage: Stage | None, peers: tuple[str, ...] = ()) -> FarmLog:
    farm = None if stage is None else partial_farm(stage.applied_state, replica=cast("Replica", stage.replica))
    current = CurrentFarm(farm)
    return FarmLog(current, URL, peers, "tcp://127.0.0.1:7671", FarmUpdates(current, None, cast("Alarms", None)))


def stage_with_updates() -> Stage:
    stage = Stage()
    farm = stage.applied_state.farm
    farm.state = replace(farm.state, level=REQIDS_LEVEL)
    return stage


async def test_entry_read_with_reqid_of_log_time_and_index() -> None:
    stage = Stage()
    for entry in (b'{"note": 1}', b"not \xff JSON"):
        await stage.append(entry)
    entries = await farm_log(stage).read(1, 10, 1_000)
    assert [each.data[12:] for each in entries] == [b'{"note": 1}', b"not \xff JSON"]
    assert [each.data[:12] for each in entries] == [NOW_S.to_bytes(4, "big") + bytes(7) + bytes([n]) for n in (1, 2)]
    assert {each.kind for each in entries} == {EntryKind.COMMAND}


async def test_copies_of_update_read_as_checkpoints() -> None:
    stage = stage_with_updates()
    entry = sealed(b'{"note": 1}', request_text(REQID))
    for each in (entry, entry, b"{}"):
        await stage.append(each)
    first, copy, last = await farm_log(stage).read(1, 10, 1_000)
    assert first.data == REQID + entry
    assert copy.kind is EntryKind.NO_OP
    assert last.data[:12] == made_reqid(3, NOW_MS)


async def test_copy_with_dropped_index_read_as_checkpoint() -> None:
    stage = stage_with_updates()
    stage.applied_state.farm.reqids = Reqids(skipped_max=4)
    entry = sealed(b'{"note": 1}', request_text(REQID))
    for _ in range(9):
        await stage.append(entry)
    first, *copies = await farm_log(stage).read(1, 10, 10_000)
    assert first.data == REQID + entry
    assert [each.kind for each in copies] == [EntryKind.NO_OP] * 8


async def test_internal_entry_read_as_checkpoint_of_its_term() -> None:
    applied_state = Stage().applied_state
    for entry in (configuration_entry(4, CONFIGURATION), no_op_entry(4, NoOp(OWN)), Entry.command(4, b"")):
        assert as_clients_see(1, entry, applied_state) == no_op_entry(4, NoOp())


def test_reqid_exists_for_any_index_and_time() -> None:
    assert made_reqid(2**63 - 1, None) == bytes(4) + (2**63 - 1).to_bytes(8, "big")
    assert len(made_reqid(1, 2**53)) == len(made_reqid(1, -5)) == 12


async def test_node_describes_itself_as_leader_of_applied_entries() -> None:
    stage = Stage()
    await stage.append(b"{}")
    await stage.append_record(rival_report())
    status = farm_log(stage, (OTHER_URL, URL)).describe()
    assert (status.is_leader, status.leader) == (True, URL)
    assert status.peers == (Peer(URL, URL), Peer(OTHER_URL, OTHER_URL))
    assert (status.first_index, status.commit, status.last_applied, status.last_index) == (1, 2, 2, 2)
    assert (status.prune_index, status.snapshot_bytes) == (0, 0)


async def test_prune_index_lags_log_time_by_7_h_45_min() -> None:
    stage = Stage()
    await stage.append(b"{}")
    log = farm_log(stage)
    assert log.describe().prune_index == 0
    for hours in (4, 8, 12):
        later_ms = NOW_MS + hours * 3_600_000
        await stage.append_record(replace(rival_report(), server_id=OWN, date_ms=later_ms, request=None))
        await stage.append_record(Clock(later_ms, OWN))
    assert log.describe().prune_index == 3, "the clock entry of four hours"


async def test_log_without_farm_lacks_leader() -> None:
    log = farm_log(None)
    assert (log.describe().is_leader, log.describe().leader, log.broadcast_url()) == (False, None, None)
    with pytest.raises(ServerStoppedError, match="not a server of a farm yet"):
        await log.read(1, 1, 1)
    with pytest.raises(ServerStoppedError):
        await log.read_snapshot(0, 1)


async def test_read_beyond_applied_index_is_empty() -> None:
    stage = Stage()
    await stage.append(b"{}")
    assert await farm_log(stage).read(2, 10, 1_000) == ()


async def test_snapshot_read_as_document_of_state() -> None:
    stage = Stage()
    await stage.append_record(rival_report())
    log = farm_log(stage)
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
    status = json.loads(document)
    assert (chunk.last, status["index"], status["term"]) == (LogId(1, 1), 1, 1)
    assert status["logTimeMs"] == NOW_MS
    assert [each["raftId"] for each in status["servers"]] == [1, 2, 3]
    assert [each["publishedS"] for each in status["masters"]] == [None]
    assert (log.describe().first_index, log.describe().snapshot_bytes) == (2, len(document))


async def test_newer_snapshot_returns_newer_document() -> None:
    stage = Stage()
    await stage.append(b"{}")
    compact(stage)
    log = farm_log(stage)
    first = await log.read_snapshot(0, 10_000)
    await stage.append(b"{}")
    compact(stage)
    second = await log.read_snapshot(0, 10_000)
    assert first is not None
    assert second is not None
    assert (first.last.index, second.last.index) == (1, 2)


@pytest.mark.parametrize("is_checked", [True, False], ids=["damaged on disk", "of another version"])
async def test_unreadable_snapshot_raises_declared_error(*, is_checked: bool) -> None:
    stage = Stage()
    await stage.append(b"{}")
    compact(stage, () if is_checked else (b"\xff" * 100,))
    if is_checked:
        stage.server.image = stage.server.image[:-50] + bytes([stage.server.image[-50] ^ 1]) + stage.server.image[-49:]
    with pytest.raises(SnapshotUnreadableError, match="entry 1 cannot be read"):
        await farm_log(stage).read_snapshot(0, 100)


def test_member_change_of_farm_refused() -> None:
    answers: list[ChangeReply] = []
    farm_log(None).change(ChangeRequest(REQID, b"farm", (Peer(URL, URL),)), answers.append)
    (answer,) = answers
    assert isinstance(answer, ChangeRefused)
    assert "farm's own rules" in answer.message


def compact(stage: Stage, state: Iterable[bytes] = ()) -> None:
    """Store `state` (default: the current state) as the snapshot."""
    last = LogId(len(stage.log), 1)
    writer = ImageWriter(last, CONFIGURATION)
    image = writer.begin() + b"".join(map(writer.blocks, state or stage.applied_state.snapshot())) + writer.end()
    stage.server.image = image
    stage.server.snapshot = SnapshotDescription(last, CONFIGURATION, len(image), writer.description.checksum)
