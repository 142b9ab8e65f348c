"""For stories that are not about authors: records and entries with the author that they name.

`AuthoredFarm` takes bare records and supplies the author; `signed` writes entries in the names of a story's servers.
"""

import itertools
from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

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
"""Of a farm in which a story uses whichever Raft ids it likes."""
CLUSTER_ID = bytes(16)


class AuthoredFarm(Farm):
    """Takes each record as its own author's: the server that it names, else server 1, with a rising number."""

    def __init__(
        self, log_time_base_ms: int, tuning: FarmTuning | None = None, founders: tuple[bytes, ...] = FOUNDERS
    ) -> None:
        super().__init__(log_time_base_ms, tuning, founders)
        if founders is FOUNDERS:
            # Most of them never report: such a story sets log time as it likes, bounded by no voters' clocks.
            self.state = replace(self.state, clocks=VoterClocks())

    def apply(self, index: int, term: int, entry: Record | ProvenRecord) -> tuple[Change, ...]:
        """Take a record; what a story already proved is taken as it is."""
        return super().apply(index, term, entry if isinstance(entry, ProvenRecord) else self.authored(entry, index))

    def authored(self, record: Record, number: int) -> ProvenRecord:
        """The record with the author for whom it speaks."""
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
    """The identity key of a story's server `number`, always the same."""
    return Ed25519PrivateKey.from_private_bytes(number.to_bytes(32))


def node_id(number: int) -> bytes:
    """The NodeId of that key."""
    return node_id_of(key_of(number).public_key().public_bytes_raw())


_numbers = itertools.count(1)


def signed(
    record: Report | Clock | Publication | IdentityRecord | OperatorCommand | bytes,
    server: int = 1,
    cluster_id: bytes = CLUSTER_ID,
) -> bytes:
    """An entry as its own server writes it; what speaks for no server, and bytes, as `server` does."""
    own = record.server_id if isinstance(record, Report | Clock | Publication) else server
    entry = record if isinstance(record, bytes) else encode(record)
    return sign_entry(entry, key_of(own), cluster_id, next(_numbers))
