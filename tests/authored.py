"""Records and entries with authors, for stories that do not test authorship.

`AuthoredFarm` accepts records without an author and adds one; `signed` returns entries signed by a story's servers.
"""

import itertools

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from bridge.core.farm.state_machine import Change, Farm
from bridge.core.log.records import (
    Admission,
    Approval,
    Author,
    Clock,
    IdentityRecord,
    OperatorCommand,
    ProvenRecord,
    Publication,
    Record,
    Report,
)
from bridge.core.log.voter_clocks import VoterClocks
from bridge.core.membership.admission import next_raft_id
from bridge.core.state.farm_state import FarmTuning
from bridge.wire.log.entries import encode
from bridge.wire.log.proof import sign_entry
from gossip.wire.identity import node_id_of

FOUNDERS = tuple(number.to_bytes(8) for number in range(1, 101))
"""Founders of a farm for stories that use any Raft ids up to 100."""
CLUSTER_ID = bytes(16)


class AuthoredFarm(Farm):
    """Uses the server named by a record as its author, or else any member, with a rising number."""

    def __init__(
        self, log_time_base_ms: int, tuning: FarmTuning | None = None, founders: tuple[bytes, ...] = FOUNDERS
    ) -> None:
        super().__init__(log_time_base_ms, tuning, founders)
        if founders is FOUNDERS:
            # Most of these founders never report, so the log time of such a story is not limited by the voters' clocks.
            self.state = replace(self.state, clocks=VoterClocks())

    def apply(self, index: int, term: int, entry: Record | ProvenRecord) -> tuple[Change, ...]:
        """Apply a record; a record that the story has already proven keeps its author."""
        return super().apply(index, term, entry if isinstance(entry, ProvenRecord) else self.authored(entry, index))

    def authored(self, record: Record, number: int) -> ProvenRecord:
        admitted = self.state.admitted
        match record:
            case Report() | Clock() | Publication():
                named = admitted.get(record.server_id)
                author = b"unknown!" if named is None else named.node_id
            case Admission() | Approval():
                author = _any_member(self)
                if record.server_id == 0:
                    record = replace(record, server_id=next_raft_id(admitted, record.node_id))
            case _:
                author = _any_member(self)
        return ProvenRecord(record, Author(author, number))


def _any_member(farm: Farm) -> bytes:
    return next(each.node_id for _, each in sorted(farm.state.admitted.items()) if each.is_member)


def key_of(number: int) -> Ed25519PrivateKey:
    """Return the identity key of a story's server `number`, which is always the same."""
    return Ed25519PrivateKey.from_private_bytes(number.to_bytes(32))


def node_id(number: int) -> bytes:
    return node_id_of(key_of(number).public_key().public_bytes_raw())


_numbers = itertools.count(1)


def signed(
    record: Report | Clock | Publication | IdentityRecord | OperatorCommand | bytes,
    server: int = 1,
    cluster_id: bytes = CLUSTER_ID,
) -> bytes:
    """Return an entry signed by the server named in the record, else by `server`."""
    own = record.server_id if isinstance(record, Report | Clock | Publication) else server
    entry = record if isinstance(record, bytes) else encode(record)
    return sign_entry(entry, key_of(own), cluster_id, next(_numbers))
