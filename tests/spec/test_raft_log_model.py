"""The log against a simple model: a list that keeps all entries.

For entries that the log has dropped (by compaction, or by trimming the memory), it returns either None or the correct
result. For all other entries it must return the same as the list.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from consensus.core.effects import Persist
from consensus.core.entry_data import configuration_entry, configuration_in, encode_group
from consensus.core.log import Log, RecoveredLog, describe_entries, entry_bytes
from consensus.core.messages import AppendEntries
from consensus.core.model import ORIGIN, Configuration, Entry, LogId, SnapshotDescription
from tests.spec.membership_bench import plain
from tests.spec.raft_bench import TWO, Bench, entries_of

INITIAL = plain(1, 2, 3)
CONTENTS = st.one_of(st.binary(max_size=3), st.sampled_from([plain(1, 2, 3), plain(1, 2, 3, 4), plain(2, 3)]))


def entry_of(term: int, content: bytes | Configuration) -> Entry:
    return Entry.command(term, content) if isinstance(content, bytes) else configuration_entry(term, content)


class _LogAndList(RuleBasedStateMachine):
    """State machine of hypothesis. `entries` is the whole log; the log may have dropped the first `start` entries."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log(RecoveredLog(), INITIAL)
        self.entries: list[Entry] = []
        self.base = INITIAL
        self.start = 0
        self.installed_at = 0
        self.written: list[tuple[int, int]] = []
        self.durable = 0
        self.number = 0

    @initialize(contents=st.lists(CONTENTS, max_size=5))
    def recovered(self, contents: list[bytes | Configuration]) -> None:
        """Start with the entries of an earlier run."""
        self.entries = [entry_of(1 + place // 2, content) for place, content in enumerate(contents)]
        self.log = Log(describe_entries(self.entries), INITIAL)
        self.durable = len(self.entries)

    @rule(contents=st.lists(CONTENTS, max_size=4), later=st.integers(0, 2))
    def append(self, contents: list[bytes | Configuration], later: int) -> None:
        term = self.term_of(len(self.entries)) + later or 1
        new = tuple(entry_of(term, content) for content in contents)
        self.log.append(new, encode_group(new))
        self.entries += new
        self.write()

    @rule(back=st.integers(0, 6))
    def truncate(self, back: int) -> None:
        index = max(self.covered(), len(self.entries) - back) + 1
        self.log.truncate_from(index)
        del self.entries[index - 1 :]
        self.durable = min(self.durable, index - 1)
        self.written = [(number, min(last, index - 1)) for number, last in self.written]
        self.write()

    @rule(data=st.data())
    def persisted(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, self.number))
        self.log.persisted(number)
        while self.written and self.written[0][0] <= number:
            self.durable = self.written.pop(0)[1]

    @rule(keep_entries=st.integers(0, 4), keep_bytes=st.integers(0, 200))
    def trim(self, keep_entries: int, keep_bytes: int) -> None:
        self.log.trim(keep_entries, keep_bytes)
        kept = self.entries[self.log.tail_first - 1 :]
        over = len(kept) > keep_entries or sum(map(entry_bytes, kept)) > keep_bytes
        assert not over or self.log.tail_first > max(self.durable, self.start), (
            "only entries that are not durable may exceed the limits"
        )

    @precondition(lambda self: self.durable > self.covered())
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(self.covered() + 1, self.durable))
        first_kept = data.draw(st.integers(self.start + 1, index + 1))
        self.log.compact(self.described(index, self.configuration_at(index)), first_kept)
        self.start = first_kept - 1

    @rule(beyond=st.integers(1, 5), later=st.integers(0, 2))
    def replaced_by_a_snapshot(self, beyond: int, later: int) -> None:
        """Install a snapshot that ends after the log; the list no longer needs the covered entries."""
        index = max(len(self.entries), self.covered()) + beyond
        term = self.term_of(len(self.entries)) + later or 1
        self.entries += [Entry.command(term, b"?")] * (index - len(self.entries))
        self.base, self.start, self.installed_at = plain(7, 8, 9), index, index
        self.log.replace(self.described(index, self.base))
        self.durable, self.written = 0, [(number, 0) for number, _ in self.written]
        self.write()

    @invariant()
    def end_equals_end_of_list(self) -> None:
        assert self.log.last == LogId(len(self.entries), self.term_of(len(self.entries)))
        assert self.log.start == LogId(self.start, self.term_of(self.start))
        assert self.log.durable_index == self.durable

    @invariant()
    def terms_equal_terms_of_list(self) -> None:
        for index in range(len(self.entries) + 3):
            known = self.start <= index <= len(self.entries)
            assert self.log.term_at(index) == (self.term_of(index) if known else None)
            assert self.log.matches(LogId(index, self.term_of(index))) == known
            if self.start < index <= len(self.entries):
                assert self.log.first_of_term_at(index) == self.first_of_term_at(index)

    @invariant()
    def configuration_is_latest_of_list(self) -> None:
        assert self.log.configuration == self.configuration_at(len(self.entries))
        for index in range(self.covered(), len(self.entries) + 1):
            assert self.log.configuration_at(index) == self.configuration_at(index)
            changed = sum(self.configuration_at(at) != self.configuration_at(at - 1) for at in self.places_after(index))
            # The first configuration of a log counts, although it repeats the initial one of all servers.
            assert self.log.configurations_after(index) in (changed, changed + 1)

    @invariant()
    def memory_has_appended_entries(self) -> None:
        first = self.log.tail_first
        assert self.log.entries(first, len(self.entries), 10**9) == tuple(self.entries[first - 1 :])
        assert self.log.entries(first - 1, len(self.entries), 10**9) is None
        assert first <= max(self.durable, self.start) + 1, "entries that are not durable could not be read back"
        assert self.log.tail_bytes == sum(map(entry_bytes, self.entries[first - 1 :]))

    def write(self) -> None:
        self.number += 1
        self.log.written(self.number)
        self.written.append((self.number, len(self.entries)))

    def covered(self) -> int:
        """Return the last index that cannot be truncated: a snapshot covers it, so it is committed."""
        return 0 if self.log.snapshot is None else self.log.snapshot.last.index

    def described(self, index: int, configuration: Configuration) -> SnapshotDescription:
        return SnapshotDescription(LogId(index, self.term_of(index)), configuration, 0, 0)

    def term_of(self, index: int) -> int:
        return self.entries[index - 1].term if 1 <= index <= len(self.entries) else 0

    def first_of_term_at(self, index: int) -> int:
        while index - 1 > self.start and self.term_of(index - 1) == self.term_of(index):
            index -= 1
        return index

    def places_after(self, index: int) -> range:
        return range(max(index, self.covered()) + 1, len(self.entries) + 1)

    def configuration_at(self, index: int) -> Configuration:
        for entry in reversed(self.entries[self.installed_at : index]):
            if (configuration := configuration_in(entry)) is not None:
                return configuration
        return self.base


@pytest.mark.search
def test_log_equals_list_model() -> None:
    """After appends, truncations, compactions, trims, installs and persists in any order, the log equals the list."""
    run_state_machine_as_test(_LogAndList, settings=settings(stateful_step_count=25))


def test_repeated_configuration_is_not_change() -> None:
    """Without a no-op in the protocol, a leader's first entry repeats the configuration, which is not a change."""
    log = Log(describe_entries([configuration_entry(1, plain(1, 2, 3))]), INITIAL)
    log.append((configuration_entry(2, plain(1, 2, 3)), configuration_entry(3, plain(1, 2, 3))))
    assert (log.configuration_index, log.configurations_after(1)) == (1, 0)
    log.append((configuration_entry(3, plain(1, 2)),))
    assert (log.configuration_index, log.previous_configuration) == (4, plain(1, 2, 3))


def test_follower_persists_received_bytes_of_new_entries() -> None:
    """If an append begins with known entries, the disk gets only the bytes of the new ones, unchanged."""
    bench = Bench()
    bench.append(term=1, entries=entries_of(1, 1), sender=TWO)
    more = entries_of(1, 1, 1, 1)
    bench.receive(
        TWO,
        AppendEntries(
            term=1, leader=TWO, previous=ORIGIN, entries=more, commit=0, correlation=99, encoded=encode_group(more)
        ),
    )
    (persist,) = bench.all(Persist)
    assert persist.entries == more[2:]
    assert persist.encoded == encode_group(more[2:])
