"""Chains of signed admissions from a founder to a Raft id: valid chains, refused chains, and their size limits.

A server that is not in the peer's list proves its Raft id with such a chain (`docs/explanation/architecture.md`).
"""

import pytest
from msgspec.structs import replace

from bridge.core.log.records import Admission, Approval, Clock
from bridge.core.membership.admission import (
    ENTRY_BYTES_MAX,
    AdmissionRefused,
    Admitted,
    Standing,
    admit,
    approve,
    of_founders,
)
from bridge.wire.log.admission_chain import LINKS_MAX, chain_of, flaw_of
from bridge.wire.log.entries import decode, encode
from bridge.wire.log.proof import sign_entry
from consensus.protocols.garlic_farm.wire.upgrade import admission_headers
from tests.authored import CLUSTER_ID, key_of, node_id, signed
from tests.effort import each_case

FOUNDERS = (node_id(1), node_id(2))


def admission(number: int, by: int, raft_id: int | None = None) -> bytes:
    """Return the admission of identity `number`, with the same Raft id unless given, signed by server `by`."""
    key = key_of(number).public_key().public_bytes_raw()
    return signed(Admission(node_id(number), f"node-{number}", key, raft_id or number), by)


def flaw(chain: list[bytes], claimed: tuple[int, bytes] = (4, node_id(4)), out: tuple[bytes, ...] = ()) -> str | None:
    """Return the reason why server 4 is refused, or None."""
    return flaw_of(chain, CLUSTER_ID, claimed, FOUNDERS.__contains__, out.__contains__)


def test_admission_by_founder_proves_raft_id() -> None:
    assert flaw([admission(4, by=2)]) is None


def test_chain_of_admissions_from_founder_proves_raft_id() -> None:
    assert flaw([admission(4, by=3), admission(3, by=5), admission(5, by=1)]) is None


def test_approval_links_chain_like_admission() -> None:
    approval = Approval(node_id(4), "node-4", node_id(3), key_of(4).public_key().public_bytes_raw(), 4)
    assert flaw([signed(approval, 1)]) is None


@each_case(
    ("chain", "reason"),
    [
        ([], "does not show an admission"),
        ([admission(4, by=4)], "do not lead to a founder"),
        ([admission(4, by=3)], "do not lead to a founder"),
        ([admission(4, by=3), admission(3, by=4)], "do not lead to a founder"),
        ([admission(4, by=1, raft_id=5)], "another identity"),
        ([admission(3, by=1)], "another identity"),
        ([admission(4, by=3), admission(5, by=1)], "another identity"),
        ([signed(Clock(1, 0), 1)], "no identity has signed"),
        ([admission(4, by=1)[:-1]], "no identity has signed"),
        ([admission(4, by=1).replace(b"node-4", b"node-5")], "no identity has signed"),
        ([b""], "no identity has signed"),
        ([b"\xff" * 1024], "no identity has signed"),
    ],
    ids=str,
)
def test_chain_not_from_founder_to_raft_id_is_refused(chain: list[bytes], reason: str) -> None:
    found = flaw(chain)
    assert found is not None
    assert reason in found


def test_admission_of_another_farm_is_refused() -> None:
    entry = signed(Admission(node_id(4), "node-4", None, 4), 1, bytes([1]) * 16)
    assert "no identity has signed" in (flaw([entry]) or "")


def test_admission_by_expelled_member_is_refused() -> None:
    chain = [admission(4, by=3), admission(3, by=1)]
    assert flaw(chain) is None
    assert "by the retired or evicted identity" in (flaw(chain, out=(node_id(3),)) or "")


def test_chain_beyond_handshake_limit_is_refused() -> None:
    line = [admission(number, by=number + 1) for number in range(4, 40)]
    reason = flaw([*line, admission(40, by=1)]) or ""
    assert "do not lead to a founder" in reason
    assert "a handshake carries 16 at most" in reason
    assert "`garlicfarm transfer NODE`" in reason
    assert "16 at most" not in (flaw(line[:3]) or ""), "only a chain that is too long gets this remedy"


def test_handshake_carries_longest_chain_of_largest_entries() -> None:
    longest = [bytes(ENTRY_BYTES_MAX)] * LINKS_MAX
    assert len(admission_headers(longest)) == LINKS_MAX
    record = Approval(node_id(4), "n" * 32, node_id(3), key_of(4).public_key().public_bytes_raw(), 2**31 - 1)
    assert len(sign_entry(encode(record), key_of(1), CLUSTER_ID, 2**53 - 1)) <= ENTRY_BYTES_MAX


@pytest.mark.parametrize("kind", ["admission", "approval"])
def test_oversized_admission_does_not_fill_state(kind: str) -> None:
    # Given a hostile leader that signs an admission of one kilobyte
    founders = of_founders(FOUNDERS)
    key = key_of(4).public_key().public_bytes_raw()
    table = {**founders, 3: Admitted(node_id(3), "node-4")} if kind == "approval" else founders
    record = (
        Approval(node_id(4), "node-4", node_id(3), key, 4)
        if kind == "approval"
        else Admission(node_id(4), "node-4", key, 3)
    )
    for extra, taken in ((1, True), (1024, False)):
        entry = signed(encode(record)[:-1] + b',"x":"' + b"x" * extra + b'"}', 1)
        read = decode(entry)
        assert read == record
        # When the entry is applied
        if isinstance(read, Approval):
            after, changes = approve(table, read, entry)
        else:
            assert isinstance(read, Admission)
            after, change = admit(table, read, entry)
            changes = () if change is None else (change,)
        # Then an oversized entry does not change the state, and the servers report its refusal
        assert (after != table) is taken
        refused = [change.reason for change in changes if isinstance(change, AdmissionRefused)]
        assert len(refused) == (not taken)
        assert all("the limit is 768" in reason for reason in refused)


def test_chain_from_log_is_valid_for_other_servers() -> None:
    # Given a log: founder 1 admits server 3, then server 3 leads and admits server 4
    table = of_founders(FOUNDERS)
    for number, by in ((3, 1), (4, 3)):
        record = Admission(node_id(number), f"node-{number}", key_of(number).public_key().public_bytes_raw(), number)
        table = dict(admit(table, record, signed(record, by))[0])
    # Then a peer that knows only the founders accepts the chain
    assert flaw(list(chain_of(table, 4, CLUSTER_ID))) is None
    assert len(chain_of(table, 4, CLUSTER_ID)) == 2
    assert flaw(list(chain_of(table, 3, CLUSTER_ID)), (3, node_id(3))) is None
    # And the chain of a founder is empty, and a retired link remains in a chain
    assert chain_of(table, 1, CLUSTER_ID) == ()
    table[3] = replace(table[3], standing=Standing.RETIRED)
    assert len(chain_of(table, 4, CLUSTER_ID)) == 2


def test_chain_of_another_farms_entries_is_empty() -> None:
    table = {4: Admitted(node_id(4), "node-4", None, entry=admission(4, by=1))}
    assert chain_of(table, 4, bytes([1]) * 16) == ()


def test_chain_from_table_is_limited_to_handshake() -> None:
    table = {n: Admitted(node_id(n), entry=admission(n, by=n - 1)) for n in range(2, 40)}
    assert len(chain_of(table, 39, CLUSTER_ID)) == LINKS_MAX
