"""Signatures of a node's submitted entries, and the numbers of these entries."""

import json

import pytest
from msgspec.structs import replace

from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.core.log.fields import ENTRY_LIMIT_BYTES
from bridge.core.log.records import Author, Clock, CostFactor, Exclusion, Factors, Record
from bridge.node.events.event_log import EventLog
from bridge.node.raft.applied_state import AppliedState
from bridge.node.raft.entry_signer import EntrySigner
from bridge.wire.log import entries as application
from bridge.wire.log.entries import EntryReader, decode, encode
from bridge.wire.log.proof import Proof, ends_like_proof, proven
from consensus.core.model import Entry
from tests.authored import CLUSTER_ID, key_of, node_id, signed

NOW_MS = 1_767_225_600_000
COMMAND = encode(Exclusion("a" * 52, excluded=True))


class SigningNode:
    """A node, its clock and its applied state."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.applied_state = AppliedState(NOW_MS, EventLog("node", lambda: 0), (node_id(1),), CLUSTER_ID)
        self.signer = self.restarted()

    def restarted(self) -> EntrySigner:
        return EntrySigner(key_of(1), CLUSTER_ID, self.applied_state, lambda: self.now_ms)

    def number(self) -> int:
        """Return the number of the next entry."""
        author = EntryReader(CLUSTER_ID).read(self.signer.sign(COMMAND)).author
        assert author is not None
        assert author.node_id == node_id(1)
        return author.number


async def test_numbers_start_at_clock_then_increase_by_one() -> None:
    node = SigningNode()
    assert [node.number() for _ in range(3)] == [NOW_MS, NOW_MS + 1, NOW_MS + 2]
    node.now_ms += 50
    assert node.number() == NOW_MS + 3
    node.signer = node.restarted()
    assert node.number() == NOW_MS + 50


async def test_entry_applied_after_later_signed_one_has_effect() -> None:
    """Numbers that follow the clock would shrink the window of 64 entries to 64 ms, and lose the first entry."""
    node = SigningNode()
    node.applied_state.farm.state = replace(node.applied_state.state, level=SUPPORTED_LEVEL)
    first = node.signer.sign(encode(CostFactor("a" * 52, 2.0)))
    node.now_ms += 5_000
    second = node.signer.sign(encode(CostFactor("b" * 52, 3.0)))
    await node.applied_state.apply(1, (Entry.command(1, second), Entry.command(1, first)))
    assert node.applied_state.state.weights.costs == {"a" * 52: 2_000, "b" * 52: 3_000}
    assert [node.applied_state.refusal_of(index) for index in (1, 2)] == [None, None]


async def test_numbers_increase_after_restart_with_earlier_clock() -> None:
    node = SigningNode()
    entry = node.signer.sign(encode(Clock(NOW_MS, 1)))
    await node.applied_state.apply(1, (Entry.command(1, entry),))
    node.now_ms -= 3_600_000
    node.signer = node.restarted()
    assert node.number() == NOW_MS + 1


async def test_operator_entry_is_signed_once_if_it_concerns_farm() -> None:
    node = SigningNode()
    own = node.signer.sign_for_operator(COMMAND)
    assert EntryReader(CLUSTER_ID).read(own).author == Author(node_id(1), NOW_MS)
    assert node.signer.sign_for_operator(own) == own
    by_a_client = signed(encode(Factors(1, "formula", {"a" * 52: 1.5})), 7)
    assert node.signer.sign_for_operator(by_a_client) == by_a_client
    for users in (b'{"note": 1}', b" { } ", b"no JSON", json.dumps({"clock": {"time": 1, "id": 1}}).encode()):
        assert node.signer.sign_for_operator(users) == users


async def test_entry_without_room_for_proof_is_refused() -> None:
    padded = COMMAND[:-1] + b',"x":"' + b"x" * (ENTRY_LIMIT_BYTES - len(COMMAND) - 50) + b'"}'
    with pytest.raises(ValueError, match="with its proof the entry has"):
        SigningNode().signer.sign_for_operator(padded)


def test_reader_caches_verified_entries_but_not_forged_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[bytes] = []

    def counted(data: bytes, cluster_id: bytes) -> Proof | None:
        verified.append(data)
        return proven(data, cluster_id)

    monkeypatch.setattr(application, "proven", counted)
    reader, entry = EntryReader(CLUSTER_ID), signed(COMMAND)
    assert [reader.read(entry).author for _ in range(3)] == [Author(node_id(1), reader.read(entry).author.number)] * 3  # type: ignore[union-attr]  # it is proven
    assert verified == [entry]
    forged = entry[:-10] + (b"A" if entry[-10:-9] != b"A" else b"B") + entry[-9:]
    assert ends_like_proof(forged)
    assert [(reader.read(forged).author, reader.read(forged).forged)] == [(None, True)]
    assert verified == [entry, forged, forged]
    assert (reader.read(COMMAND).author, reader.read(COMMAND).forged) == (None, False)
    assert len(verified) == 3, "an entry without a proof is not verified"


def test_cache_of_verified_entries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "VERIFIED_LIMIT", 4)
    reader = EntryReader(CLUSTER_ID)
    entries = [signed(COMMAND) for _ in range(10)]
    assert all(reader.read(entry).author for entry in (*entries, *entries))
    assert len(reader._verified) == 4


def test_submitted_entry_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry is needed at commit, when it is applied, and for the reply to its client."""
    parsed: list[bytes] = []

    def counted(data: bytes) -> Record:
        parsed.append(data)
        return decode(data)

    monkeypatch.setattr(application, "decode", counted)
    reader, entry = EntryReader(CLUSTER_ID), signed(COMMAND)
    committed = reader.read_submitted(entry)
    assert reader.read(bytes(bytearray(entry))) == reader.read_submitted(entry) == committed
    assert parsed == [entry]


def test_cache_of_submitted_entries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "SUBMITTED_LIMIT", 3)
    reader = EntryReader(CLUSTER_ID)
    entries = [b'{"request":"%d"}' % number for number in range(10)]
    for entry in [*entries, b'{"request":"' + b"x" * application.SUBMITTED_LIMIT_BYTES + b'"}']:
        reader.read_submitted(entry)
    assert list(reader._submitted) == entries[-3:]
