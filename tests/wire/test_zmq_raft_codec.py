"""The frames of ØMQ Raft as its text gives them, and what the codec refuses."""

import pytest

from consensus.core.entry_data import configuration_entry, configuration_head, no_op_entry
from consensus.core.model import Entry, EntryKind, NoOp
from consensus.protocols.zmq_raft.wire.entries import configuration_of, entry_frame, read_entry
from consensus.protocols.zmq_raft.wire.frames import (
    MAX_UINT,
    ZmqRaftError,
    bool_frame,
    json_frame,
    read_bool,
    read_json,
    read_uint,
    string_frame,
    uint_frame,
)
from consensus.protocols.zmq_raft.wire.messages import Peer

REQUEST_ID = bytes.fromhex("5956dc8826f27e10dcccab20")
PEERS = (Peer("1", "tcp://127.0.0.1:8047"), Peer("2", "tcp://127.0.0.1:8147"))


@pytest.mark.parametrize(
    ("number", "frame"), [(0, "00"), (255, "ff"), (256, "0001"), (MAX_UINT, "ffffffffffff1f"), (300, "2c01")]
)
def test_a_number_has_the_bytes_of_the_text(number: int, frame: str) -> None:
    assert uint_frame(number).hex() == frame
    assert read_uint(bytes.fromhex(frame), "number") == number


def test_strings_booleans_and_json_have_the_bytes_of_the_text() -> None:
    assert string_frame("foo", "text", 3).hex() == "666f6f"
    assert (bool_frame(value=False), bool_frame(value=True)) == (b"", b"\x01")
    assert [read_bool(frame) for frame in (b"", b"\0", b"\x01", b"\0\x01")] == [False, False, True, False]
    assert json_frame(None).hex() == "c0"
    assert json_frame([42, "foo", False]).hex() == "932aa3666f6fc2"
    assert read_json(bytes.fromhex("932aa3666f6fc2"), "value", 100) == [42, "foo", False]


def test_log_entries_have_the_bytes_of_the_text() -> None:
    update = Entry(42, EntryKind.COMMAND, REQUEST_ID + b"foo")
    assert entry_frame(update).hex() == "5956dc8826f27e10dcccab20" + "00" + "2a000000000000" + "666f6f"
    assert read_entry(entry_frame(update)) == update
    checkpoint = no_op_entry(43, NoOp())
    assert entry_frame(checkpoint).hex() == "00" * 12 + "02" + "2b000000000000" + "c0"
    assert read_entry(entry_frame(checkpoint)) == checkpoint


def test_a_configuration_keeps_the_id_of_the_request_that_asked_for_it() -> None:
    entry = configuration_entry(7, configuration_of(PEERS, PEERS[:1]), REQUEST_ID)
    assert entry_frame(entry)[:12] == REQUEST_ID
    assert read_entry(entry_frame(entry)) == entry
    assert configuration_head(read_entry(entry_frame(entry)).data) == REQUEST_ID


def test_an_entry_without_data_is_refused_in_both_directions() -> None:
    with pytest.raises(ZmqRaftError, match="no data"):
        entry_frame(Entry(1, EntryKind.COMMAND, REQUEST_ID))
    with pytest.raises(ZmqRaftError, match="20 bytes"):
        read_entry(REQUEST_ID + b"\0" + b"\x01" + b"\0" * 6)
