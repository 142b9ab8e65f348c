"""Planted bugs of KRaft's own parts: its wire, its record batches and its directories."""

import struct
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from consensus.core.log import Log
from consensus.core.model import Entry, Index, LogId, ReplicaKey, ServerId, Term
from consensus.protocols.kraft.replica.quorum_names import QuorumNames
from consensus.protocols.kraft.replica.quorum_service import AnsweringLeader, QuorumReplies
from consensus.protocols.kraft.wire import entries, mapping, replica_names
from consensus.protocols.kraft.wire.mapping import Answering
from consensus.protocols.kraft.wire.replica_names import Names
from tests.simulation.consensus.mutants import Mutant

_PRODUCER = struct.Struct(">qhi")
_now = AnsweringLeader.now
_records = QuorumReplies._records
_entries_in = entries._entries_in


def _is_for_our_number(voter_id: int, _directory: UUID, names: Names) -> bool:
    return voter_id in (-1, names.local().id)


def _key_of_the_voter(self: QuorumNames, replica_id: int, directory: bytes) -> ReplicaKey:
    return self._voters.get(replica_id, ReplicaKey(replica_id, directory))


def _commit_index(_self: Answering, _term: Term, commit: Index) -> int:
    return commit


def _as_the_server_knows_now(self: AnsweringLeader) -> Answering:
    answering = _now(self)
    knows = self._soft_state().commit_index >= self._began.index
    return replace(answering, began=None) if knows else answering


def _the_leader_of_now(self: Answering, _term: Term) -> ServerId | None:
    return self.leader


def _in_the_newest_epoch(self: QuorumReplies, first: Index, written: tuple[Entry, ...]) -> bytes:
    return _records(self, first, tuple(replace(entry, term=written[-1].term) for entry in written))


def _with_the_sequence_of_the_batch(head: Any, tails: Any, skipped: int) -> list[Entry]:
    producer = _PRODUCER.pack(head.producer_id, head.producer_epoch, head.base_sequence)
    read = _entries_in(head, tails, skipped)
    if head.producer_id < 0:
        return read
    return [replace(entry, data=entry.data[:9] + producer + entry.data[9 + _PRODUCER.size :]) for entry in read]


def _by_offset_alone(self: Log, position: LogId) -> bool:
    return position.index <= self.last_index


KRAFT_MUTANTS = (
    Mutant(
        "kraft-vote-for-another-directory",
        "a server that has lost its directory answers as the voter that it was",
        ((replica_names, "is_for_us", _is_for_our_number), (mapping, "is_for_us", _is_for_our_number)),
        "kraft",
    ),
    Mutant(
        "kraft-fetch-of-another-directory",
        "fetches of a server that has lost its directory count for the voter that it was",
        ((QuorumNames, "replica_key", _key_of_the_voter),),
        "kraft",
    ),
    Mutant(
        "kraft-high-watermark-at-once",
        "a new leader sends a high watermark before it has committed an entry of its own epoch",
        ((Answering, "high_watermark", _commit_index),),
        "kraft",
    ),
    Mutant(
        "kraft-high-watermark-of-a-moment-later",
        "a reply from before the leader's first commit has a high watermark, because the response leaves after it",
        ((AnsweringLeader, "now", _as_the_server_knows_now),),
        "kraft",
    ),
    Mutant(
        "kraft-leader-of-another-epoch",
        "a vote is answered with the leader of a later epoch, as if it led the epoch of the answer",
        ((Answering, "leader_in", _the_leader_of_now),),
        "kraft",
    ),
    Mutant(
        "kraft-epoch-of-the-newest-entry",
        "all record batches have the epoch of the newest entry in the response",
        ((QuorumReplies, "_records", _in_the_newest_epoch),),
        "kraft",
    ),
    Mutant(
        "kraft-sequence-of-the-batch",
        "each record of a producer's batch is read with the sequence of the first",
        ((entries, "_entries_in", _with_the_sequence_of_the_batch),),
        "kraft",
    ),
    Mutant(
        "kraft-match-by-offset-alone",
        "a fetch is served without comparing the epoch at its offset, so diverging logs are never cut",
        ((Log, "matches", _by_offset_alone),),
        "kraft",
    ),
)
