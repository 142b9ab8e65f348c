"""The table of executed requests, compared with a model without a size limit."""

from dataclasses import dataclass, field
from random import Random
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from consensus.protocols.zmq_raft.wire import request_table
from consensus.protocols.zmq_raft.wire.request_ids import NO_REQUEST_ID, make_request_id, request_seconds
from consensus.protocols.zmq_raft.wire.request_table import _RECORD, RequestTable

NOW = 1_700_000_000


def request_id(seconds: int, counter: int) -> bytes:
    return make_request_id(seconds, b"abc", 7, counter)


@dataclass
class Model:
    """All ids ever added to the log, with their indexes."""

    indexes: dict[bytes, list[int]] = field(default_factory=dict)
    expired_before: int = 0

    def fresh(self, grain: int = 1) -> list[int]:
        """Return the indexes of all unexpired ids; with `grain=60`, also of expired ids in the last expired minute."""
        bound = self.expired_before // grain
        return [
            index
            for known, indexes in self.indexes.items()
            if request_seconds(known) // grain >= bound
            for index in indexes
        ]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(NOW - 400, NOW + 60), st.integers(0, 30)),
        st.tuples(st.just("expire"), st.integers(NOW - 500, NOW), st.just(0)),
    ),
    max_size=120,
)


@given(steps=steps, limit=st.integers(1, 40), run=st.integers(1, 6))
def test_id_has_its_index_or_counts_as_expired(steps: list[tuple[str, int, int]], limit: int, run: int) -> None:
    """The table never treats a known id as new, for any order of times, any limit and any moments of expiry."""
    with patch.object(request_table, "_RUN_RECORDS", run):
        table, model, index = RequestTable(limit), Model(), 0
        for step, seconds, counter in steps:
            if step == "add":
                index += 1
                table.add(request_id(seconds, counter), index)
                model.indexes.setdefault(request_id(seconds, counter), []).append(index)
            else:
                table.forget_before(seconds)
                model.expired_before = seconds
            assert len(table) <= limit
            for known, indexes in model.indexes.items():
                found = table.index_of(known)
                assert found in indexes or (found is None and table.may_be_forgotten(known))


@given(steps=steps, run=st.integers(1, 6))
def test_table_with_enough_room_is_exact(steps: list[tuple[str, int, int]], run: int) -> None:
    """The table does not store an expired id, even if the log repeats it."""
    with patch.object(request_table, "_RUN_RECORDS", run):
        table, first, index, oldest = RequestTable(1000), dict[bytes, int](), 0, 0
        for step, seconds, counter in steps:
            if step == "add":
                index += 1
                table.add(request_id(seconds, counter), index)
                if seconds >= oldest:
                    first.setdefault(request_id(seconds, counter), index)
            else:
                oldest = seconds
                table.forget_before(seconds)
                first = {known: at for known, at in first.items() if request_seconds(known) >= seconds}
            assert {known: table.index_of(known) for known in first} == first
            assert len(table) == len(first)
            assert table.prune_index(index) == min(first.values(), default=index + 1) - 1


@given(steps=steps, limit=st.integers(1, 20))
def test_prune_index_counts_ids_dropped_for_room(steps: list[tuple[str, int, int]], limit: int) -> None:
    """The prune index may be too low, but only by dropped ids of the minute that is expiring."""
    table, model, index = RequestTable(limit), Model(), 0
    for step, seconds, counter in steps:
        if step == "expire" and seconds >= model.expired_before:
            model.expired_before = seconds
            table.forget_before(seconds)
        elif step == "add" and seconds >= model.expired_before and request_id(seconds, counter) not in model.indexes:
            index += 1
            table.add(request_id(seconds, counter), index)
            model.indexes[request_id(seconds, counter)] = [index]
        exact = min(model.fresh(), default=index + 1) - 1
        assert min(model.fresh(60), default=index + 1) - 1 <= table.prune_index(index) <= exact


@given(seed=st.integers(0, 2**32), limit=st.integers(2, 64))
def test_restart_from_prune_index_refuses_same_ids(seed: int, limit: int) -> None:
    """A restart reads a log larger than the table only after the prune index. Then no id counts as new."""
    random = Random(seed)
    log = [request_id(NOW + at // 8 - random.randrange(100), random.randrange(2**24)) for at in range(400)]
    table = RequestTable(limit)
    for index, known in enumerate(log, start=1):
        table.add(known, index)
    table.forget_before(NOW)
    pruned = table.prune_index(len(log))
    again = RequestTable(limit)
    again.forget_before(NOW)
    for index, known in enumerate(log[pruned:], start=pruned + 1):
        again.add(known, index)
    for index, known in enumerate(log, start=1):
        expired = request_seconds(known) < NOW
        assert again.index_of(known) == index or again.may_be_forgotten(known) or expired


def test_entries_without_request_are_not_stored() -> None:
    """Such entries are CHECKPOINT and the last step of a membership change."""
    table = RequestTable()
    table.add(NO_REQUEST_ID, 1)
    assert len(table) == 0
    assert table.prune_index(5) == 5


def test_cleared_table_keeps_its_floor() -> None:
    """Ids that were too old before the installation of a snapshot are still too old after it."""
    table = RequestTable(16)
    for index in range(40):
        table.add(request_id(NOW + index, 1), index + 1)
    floor = table._floor_seconds
    table.clear()
    assert (len(table), table.index_of(request_id(NOW + 39, 1)), table._floor_seconds) == (0, None, floor)
    assert floor >= NOW + 20


def test_sorted_ids_use_twenty_bytes_each() -> None:
    """A quarter of a million ids use 5 MiB; a dict would use 45."""
    table = RequestTable()
    for index in range(20_480):
        table.add(request_id(NOW + index // 500, index), index + 1)
    assert (table._sorted, _RECORD.size) == (20_480, 20)
    assert table.index_of(request_id(NOW, 77)) == 78
