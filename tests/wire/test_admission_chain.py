"""Signed admissions that lead from a founder to a Raft id: what they show, and what is taken for none."""

from dataclasses import replace

import pytest

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

FOUNDERS = (node_id(1), node_id(2))


def admission(number: int, by: int, raft_id: int | None = None) -> bytes:
    """Server `by` admits the identity `number` as the server of that number, or as `raft_id`."""
    key = key_of(number).public_key().public_bytes_raw()
    return signed(Admission(node_id(number), f"node-{number}", key, raft_id or number), by)


def flaw(chain: list[bytes], claimed: tuple[int, bytes] = (4, node_id(4)), out: tuple[bytes, ...] = ()) -> str | None:
    """Why server 4 is not believed."""
    return flaw_of(chain, CLUSTER_ID, claimed, FOUNDERS.__contains__, out.__contains__)


def test_an_admission_by_a_founder_shows_which_node_has_the_raft_id() -> None:
    assert flaw([admission(4, by=2)]) is None


def test_a_line_of_admissions_from_a_founder_shows_it_too() -> None:
    assert flaw([admission(4, by=3), admission(3, by=5), admission(5, by=1)]) is None


def test_an_approval_is_a_link_like_an_admission() -> None:
    approval = Approval(node_id(4), "node-4", node_id(3), key_of(4).public_key().public_bytes_raw(), 4)
    assert flaw([signed(approval, 1)]) is None


@pytest.mark.parametrize(
    ("chain", "said"),
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
def test_whatever_does_not_lead_from_a_founder_to_that_very_id_shows_nothing(chain: list[bytes], said: str) -> None:
    found = flaw(chain)
    assert found is not None
    assert said in found


def test_admissions_of_another_farm_show_nothing() -> None:
    entry = signed(Admission(node_id(4), "node-4", None, 4), 1, bytes([1]) * 16)
    assert "no identity has signed" in (flaw([entry]) or "")


def test_what_an_expelled_member_signed_shows_nothing() -> None:
    chain = [admission(4, by=3), admission(3, by=1)]
    assert flaw(chain) is None
    assert "by the retired or evicted identity" in (flaw(chain, out=(node_id(3),)) or "")


def test_a_line_that_is_longer_than_a_handshake_carries_is_not_walked_to_its_end() -> None:
    line = [admission(number, by=number + 1) for number in range(4, 40)]
    said = flaw([*line, admission(40, by=1)]) or ""
    assert "do not lead to a founder" in said
    assert "a handshake carries 16 at most" in said
    assert "`garlicfarm transfer --to NODE`" in said
    assert "16 at most" not in (flaw(line[:3]) or ""), "the way out is told where the length is what is wrong"


def test_a_handshake_carries_each_entry_that_the_state_keeps_and_the_whole_chain() -> None:
    longest = [bytes(ENTRY_BYTES_MAX)] * LINKS_MAX
    assert len(admission_headers(longest)) == LINKS_MAX
    record = Approval(node_id(4), "n" * 32, node_id(3), key_of(4).public_key().public_bytes_raw(), 2**31 - 1)
    assert len(sign_entry(encode(record), key_of(1), CLUSTER_ID, 2**53 - 1)) <= ENTRY_BYTES_MAX


@pytest.mark.parametrize("kind", ["admission", "approval"])
def test_an_admission_with_unknown_members_does_not_fill_the_state(kind: str) -> None:
    # Given a leader that is hostile, and signs an admission of a kilobyte
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
        # When it is applied
        if isinstance(read, Approval):
            after, changes = approve(table, read, entry)
        else:
            assert isinstance(read, Admission)
            after, change = admit(table, read, entry)
            changes = () if change is None else (change,)
        # Then the state stays as it was, and the servers tell of it
        assert (after != table) is taken
        refused = [change.reason for change in changes if isinstance(change, AdmissionRefused)]
        assert len(refused) == (not taken)
        assert all("the limit is 768" in reason for reason in refused)


def test_the_log_gives_each_server_the_line_that_others_will_believe() -> None:
    # Given a log in which founder 1 admits server 3, and server 3 leads and admits server 4
    table = of_founders(FOUNDERS)
    for number, by in ((3, 1), (4, 3)):
        record = Admission(node_id(number), f"node-{number}", key_of(number).public_key().public_bytes_raw(), number)
        table = dict(admit(table, record, signed(record, by))[0])
    # Then what it gives to show is believed by who knows the founders alone
    assert flaw(list(chain_of(table, 4, CLUSTER_ID))) is None
    assert len(chain_of(table, 4, CLUSTER_ID)) == 2
    assert flaw(list(chain_of(table, 3, CLUSTER_ID)), (3, node_id(3))) is None
    # And a founder needs to show nothing, nor does the standing of a link matter to who shows it
    assert chain_of(table, 1, CLUSTER_ID) == ()
    table[3] = replace(table[3], standing=Standing.RETIRED)
    assert len(chain_of(table, 4, CLUSTER_ID)) == 2


def test_a_table_whose_entries_are_of_another_farm_gives_nothing_to_show() -> None:
    table = {4: Admitted(node_id(4), "node-4", None, entry=admission(4, by=1))}
    assert chain_of(table, 4, bytes([1]) * 16) == ()


def test_a_table_never_gives_more_than_a_handshake_carries() -> None:
    table = {n: Admitted(node_id(n), entry=admission(n, by=n - 1)) for n in range(2, 40)}
    assert len(chain_of(table, 39, CLUSTER_ID)) == LINKS_MAX
