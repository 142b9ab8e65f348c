"""What a node keeps of admissions: its own Raft id before it has a log, everybody's after a restart."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from bridge.core.admission import Admitted, of_founders
from bridge.core.farm_state import FarmState
from bridge.core.founding import Founder, Founding
from bridge.node.admissions import FILE_NAME, AdmissionNotes, not_started
from bridge.node.forming import UnusableFormationError
from bridge.node.ledger import Ledger
from bridge.node.roster import Roster

A, B, C, D = (bytes([number]) * 8 for number in (1, 2, 3, 4))
FOUNDING = Founding((Founder(A, 0, b"a" * 16), Founder(B, 0, b"b" * 16)))


@dataclass
class Told:
    """As much of a roster, and of a ledger, as is asked for."""

    raft_id: int | None = None
    state: FarmState = field(default_factory=lambda: FarmState(0, admitted=of_founders(FOUNDING.founders)))
    something_new: trio.Event = field(default_factory=trio.Event)

    def admission_told(self, node_id: bytes, cluster_id: bytes) -> int | None:
        """What the leader says."""
        assert (node_id, cluster_id) in {(C, FOUNDING.cluster_id), (A, FOUNDING.cluster_id)}
        return self.raft_id

    async def news(self) -> None:
        """When the story says so."""
        await self.something_new.wait()
        self.something_new = trio.Event()

    @property
    def roster(self) -> Roster:
        """As the real one."""
        return cast("Roster", self)

    @property
    def ledger(self) -> Ledger:
        """As the real one."""
        return cast("Ledger", self)


async def test_a_founder_has_its_raft_id_at_once_and_without_a_file(tmp_path: Path) -> None:
    notes = AdmissionNotes(tmp_path, FOUNDING, B, founded=True)
    assert await notes.until_admitted(Told().roster) == 2
    assert not (tmp_path / FILE_NAME).exists()


async def test_a_newcomer_waits_until_it_is_told_and_remembers_it(tmp_path: Path) -> None:
    notes, told, found = AdmissionNotes(tmp_path, FOUNDING, C, founded=False), Told(), []

    async def wait() -> None:
        found.append(await notes.until_admitted(told.roster))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert found == []
        told.raft_id = 3
        told.something_new.set()
    assert found == [3]
    assert AdmissionNotes(tmp_path, FOUNDING, C, founded=False).own_id == 3


@pytest.mark.parametrize(("node_id", "raft_id"), [(A, 1), (A, 3), (C, 2)])
async def test_nobody_takes_the_raft_id_of_another_one_nor_a_founder_one_that_it_does_not_remember(
    tmp_path: Path, autojump_clock: MockClock, node_id: bytes, raft_id: int
) -> None:
    del autojump_clock
    notes = AdmissionNotes(tmp_path, FOUNDING, node_id, founded=False)
    with trio.move_on_after(60) as patience:
        await notes.until_admitted(Told(raft_id).roster)
    assert patience.cancelled_caught
    assert notes.own_id is None


async def test_what_the_log_says_is_known_after_a_restart(tmp_path: Path) -> None:
    told = Told()
    told.state = FarmState(0, admitted={**told.state.admitted, 3: Admitted(C, "c"), 4: Admitted(D, "d")})
    notes = AdmissionNotes(tmp_path, FOUNDING, A, founded=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(notes.follow, told.ledger)
        while notes.node_id_of(4) is None:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    again = AdmissionNotes(tmp_path, FOUNDING, A, founded=True)
    assert [again.node_id_of(number) for number in range(6)] == [None, A, B, C, D, None]
    assert again.own_id == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cannot be used"),
        (b'{"cluster": 1, "servers": {}}', "cannot be used"),
        (b'{"cluster": "63636363636363636363636363636363", "servers": {"3": "xyz"}}', "cannot be used"),
        (b'{"cluster": "00", "servers": {}}', "written in another farm"),
    ],
)
def test_a_file_that_cannot_be_used_stops_the_node_and_says_what_to_do(
    tmp_path: Path, content: bytes, says: str
) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(UnusableFormationError, match=says):
        AdmissionNotes(tmp_path, FOUNDING, C, founded=False)


def test_only_those_outside_of_the_group_whose_server_does_not_run_are_told() -> None:
    admitted = {1: Admitted(A), 2: Admitted(B), 3: Admitted(C, "c"), 4: Admitted(D, "d")}
    nobody: dict[bytes, int | None] = dict.fromkeys((A, B, C, D, b"stranger"))
    assert not_started(admitted, {1, 2}, nobody, 4) == ((C, 3), (D, 4))
    assert not_started(admitted, {1, 2}, nobody, 1) == ((C, 3),)
    assert not_started(admitted, {1, 2, 3}, {**nobody, D: 4}, 4) == ()
