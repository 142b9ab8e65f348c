"""The log assigns Raft ids: each id once, to one identity, under a unique name."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.core.log.records import Admission
from bridge.core.membership.admission import (
    ADMITTED_MAX,
    AdmissionRefused,
    Admitted,
    ServerAdmitted,
    Standing,
    admit,
    of_founders,
    with_room,
)
from tests.authored import AuthoredFarm

BASE_MS = 1_700_000_000_000
A, B, C = (bytes([number]) * 8 for number in (1, 2, 3))


def farm() -> AuthoredFarm:
    return AuthoredFarm(BASE_MS, founders=(A, B))


def test_founders_have_first_ids_before_first_entry() -> None:
    assert farm().state.admitted == {1: Admitted(A), 2: Admitted(B)}


def test_new_identity_gets_next_id_and_keeps_it() -> None:
    story = farm()
    assert story.apply(1, 1, Admission(C, "c")) == (ServerAdmitted(3, C, "c"),)
    assert story.apply(2, 1, Admission(C, "c")) == ()
    assert story.apply(3, 1, Admission(C, "renamed")) == (ServerAdmitted(3, C, "renamed"),)
    assert story.state.admitted[3] == Admitted(C, "renamed", unseen_since_ms=BASE_MS)


def test_founder_name_recorded_under_its_id() -> None:
    assert farm().apply(1, 1, Admission(B, "b")) == (ServerAdmitted(2, B, "b"),)


def test_admission_under_used_name_refused() -> None:
    story = farm()
    story.apply(1, 1, Admission(B, "b"))
    before = story.state.admitted
    [refused] = story.apply(2, 1, Admission(C, "b"))
    assert isinstance(refused, AdmissionRefused)
    assert f"the name b belongs to the identity {B.hex()}, and {C.hex()} uses it" in refused.reason
    assert story.state.admitted == before


def test_full_table_refuses_new_identity_but_renames_known() -> None:
    full = of_founders(tuple(number.to_bytes(8, "big") for number in range(ADMITTED_MAX)))
    table, refused = admit(full, Admission(C, "c"))
    assert isinstance(refused, AdmissionRefused)
    assert table == full
    assert admit(full, Admission(full[7].node_id, "seven", server_id=7))[1] == ServerAdmitted(
        7, full[7].node_id, "seven"
    )


def full_table(**standings: Standing) -> dict[int, Admitted]:
    """Return a full table; `n5=RETIRED` makes id 5 retired."""
    rows = {number: Admitted(number.to_bytes(8, "big")) for number in range(1, ADMITTED_MAX + 1)}
    for name, standing in standings.items():
        number = int(name[1:])
        rows[number] = replace(rows[number], standing=standing)
    return rows


def test_full_table_drops_retired_before_evicted() -> None:
    table = full_table(n5=Standing.EVICTED, n9=Standing.RETIRED, n12=Standing.RETIRED)
    assert table.keys() - with_room(table).keys() == {9}


def test_full_table_without_retired_drops_evicted() -> None:
    table = full_table(n5=Standing.EVICTED, n9=Standing.EVICTED)
    assert table.keys() - with_room(table).keys() == {5}


def test_full_table_keeps_highest_id() -> None:
    table = full_table(**{f"n{ADMITTED_MAX}": Standing.RETIRED})
    assert with_room(table) == table


def test_snapshot_without_admissions_restores_founders() -> None:
    story = farm()
    story.restore(replace(story.state, admitted={}), 30_000, story.sessions.dump())
    assert story.state.admitted == {1: Admitted(A), 2: Admitted(B)}


@given(st.lists(st.tuples(st.integers(1, 6), st.sampled_from("uvwxyz")), max_size=30))
def test_raft_ids_keep_owners_and_names_stay_unique(admissions: list[tuple[int, str]]) -> None:
    story = farm()
    for index, (number, name) in enumerate(admissions, start=1):
        before = story.state.admitted
        story.apply(index, 1, Admission(bytes([number]) * 8, name))
        after = story.state.admitted
        assert {server_id: after[server_id].node_id for server_id in before} == {
            server_id: each.node_id for server_id, each in before.items()
        }
        assert list(after) == list(range(1, len(after) + 1))
        owners = [each.node_id for each in after.values()]
        assert len(set(owners)) == len(owners)
        names = [each.name for each in after.values() if each.name is not None]
        assert len(set(names)) == len(names)
