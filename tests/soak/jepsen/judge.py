"""Judges a run: its history, the logs of all nodes at the end, and the records that readers received.

    logs of the nodes ──▶ equal ──▶ the log ──▶ acknowledged writes at their index, refused writes absent
    history + the log ──▶ registers ──▶ the exact checker of `tests.simulation.consensus.linearizability`
                      ──▶ order of all operations: an index never precedes the index of an earlier answer
    readers ──▶ each record equals the log; without gap, duplicate or uncommitted record

The order check covers all registers together: a read that includes index 9 follows every write up to index 9. All
findings are sentences of the story.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.simulation.consensus import linearizability
from tests.simulation.consensus.linearizability import NOTHING, Verdict
from tests.soak.jepsen.history import Operation, Outcome, Protocol, written

SHOWN_MAX = 5
"""Findings of one kind in the story."""

Log = Mapping[int, bytes]
"""Committed entries by index."""


@dataclass(frozen=True, slots=True)
class Received:
    """The records of one reader, in the order of their arrival."""

    reader: str
    records: Sequence[tuple[int, bytes]]
    """Index and data."""
    is_complete: bool
    """True for every entry, False for the records of Kafka's topic."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The writes of the log."""

    index_of: Mapping[int, int]
    """Index of the first copy of each value."""
    previous: Mapping[int, int]
    """For each value, the value that it replaced in its register."""


def merged(logs: Mapping[str, Log]) -> tuple[dict[int, bytes], list[str]]:
    """Return the log of all nodes, and the differences between them."""
    log: dict[int, bytes] = {}
    findings = []
    for name, entries in logs.items():
        wrong = [index for index, data in entries.items() if log.setdefault(index, data) != data]
        if wrong:
            findings.append(f"{name} has other entries than another node, first at index {min(wrong)}")
    ends = {name: max(entries, default=0) for name, entries in logs.items()}
    if len(set(ends.values())) > 1:
        findings.append(f"the logs end at different indexes: {ends}")
    return log, findings


def placed(log: Log) -> Placed:
    index_of: dict[int, int] = {}
    previous: dict[int, int] = {}
    current: dict[int, int] = {}
    for index in sorted(log):
        write = written(log[index])
        if write is not None and write[1] not in index_of:
            key, value = write
            index_of[value] = index
            previous[value] = current.get(key, NOTHING)
            current[key] = value
    return Placed(index_of, previous)


def judge(operations: Sequence[Operation], logs: Mapping[str, Log], received: Iterable[Received]) -> list[str]:
    """Return all findings; an empty list for a correct run."""
    log, findings = merged(logs)
    found = placed(log)
    findings += _acknowledged(operations, log, found)
    findings += _linearizable(operations, found)
    findings += _ordered(operations, found)
    for each in received:
        findings += _received(each, log, found)
    return findings


def _acknowledged(operations: Sequence[Operation], log: Log, found: Placed) -> list[str]:
    lost, twice, refused = [], [], []
    first_ns = min((each.called_ns for each in operations), default=0)
    for each in operations:
        if each.value is None:
            continue
        index = found.index_of.get(each.value)
        where = f"value {each.value} of {each.client} ({(each.answered_ns - first_ns) / 1e9:.1f} s)"
        match each.outcome:
            case Outcome.OK if index is None:
                lost.append(f"{where}: acknowledged at index {each.index}, lost")
            case Outcome.OK if each.index != index:
                held = written(log.get(each.index or 0, b""))
                twice.append(
                    f"{where}: acknowledged at index {each.index}, where the log has {held}; its index: {index}"
                )
            case Outcome.FAILED if index is not None:
                refused.append(f"{where}: refused ({each.detail}), and committed at index {index}")
            case _:
                pass
    return [_shown(kind) for kind in (lost, twice, refused) if kind]


def _shown(findings: Sequence[str]) -> str:
    more = len(findings) - SHOWN_MAX
    return "; ".join(findings[:SHOWN_MAX]) + (f"; {more} more" if more > 0 else "")


def _linearizable(operations: Sequence[Operation], found: Placed) -> list[str]:
    registers, unread = [], set(found.index_of) - {each.value for each in operations}
    if unread:
        return [f"the log has values that no client has written: {sorted(unread)[:SHOWN_MAX]}"]
    moments = _moments(operations)
    for number, each in enumerate(operations):
        called, answered = moments[2 * number], moments[2 * number + 1]
        if each.value is not None and each.outcome is not Outcome.FAILED:
            is_ok = each.outcome is Outcome.OK and each.value in found.index_of
            before = found.previous[each.value] if is_ok else None
            registers.append(
                linearizability.Operation(each.key, each.value, before, called, answered if is_ok else None)
            )
        elif each.value is None and each.outcome is Outcome.OK:
            # One read covers all registers; the moments of one register still differ.
            registers += [
                linearizability.Operation(key, None, value, called, answered) for key, value in each.found.items()
            ]
    judgment = linearizability.judge(registers)
    return [f"register {judgment.key} is not linearizable"] if judgment.verdict is Verdict.CONTRADICTORY else []


def _moments(operations: Sequence[Operation]) -> list[int]:
    """Return distinct moments of all calls and answers. A call precedes an answer of the same time."""
    times = [time for each in operations for time in ((each.called_ns, 0), (each.answered_ns, 1))]
    ranks = [0] * len(times)
    for rank, place in enumerate(sorted(range(len(times)), key=times.__getitem__), 1):
        ranks[place] = rank
    return ranks


def _ordered(operations: Sequence[Operation], found: Placed) -> list[str]:
    """Compare the order of indexes with the order of times, over all registers."""
    effective = [
        (each, index)
        for each in operations
        if each.outcome is not Outcome.FAILED
        and (index := each.index if each.value is None else found.index_of.get(each.value)) is not None
    ]
    answers = sorted((each.answered_ns, index) for each, index in effective if each.outcome is Outcome.OK)
    wrong, highest, place = [], 0, 0
    for each, index in sorted(effective, key=lambda pair: pair[0].called_ns):
        while place < len(answers) and answers[place][0] < each.called_ns:
            highest = max(highest, answers[place][1])
            place += 1
        if index < highest:
            what = "a read" if each.value is None else f"value {each.value}"
            wrong.append(f"{what} of {each.client} is at index {index}, after an answer with index {highest}")
    return [_shown(wrong)] if wrong else []


def _received(reader: Received, log: Log, found: Placed) -> list[str]:
    findings = []
    indexes = [index for index, _ in reader.records]
    if any(later <= earlier for earlier, later in pairwise(indexes)):
        findings.append(f"{reader.reader} received a record twice, or records out of order")
    wrong = [index for index, data in reader.records if not _is_copy(data) and log.get(index) != data]
    if wrong:
        findings.append(f"{reader.reader} received uncommitted records at the indexes {wrong[:SHOWN_MAX]}")
    if indexes:
        got = set(indexes)
        if reader.is_complete:
            gaps = [index for index in range(indexes[0], indexes[-1]) if index not in got]
        else:
            expected = (index for index in found.index_of.values() if index <= indexes[-1])
            gaps = sorted(index for index in expected if index not in got)
        if gaps:
            findings.append(f"{reader.reader} missed the indexes {gaps[:SHOWN_MAX]}, {len(gaps)} in all")
        copies = len(values := [write[1] for _, data in reader.records if (write := written(data))]) - len(set(values))
        if copies and not reader.is_complete:
            findings.append(f"{reader.reader} received {copies} values twice")
    return findings


def _is_copy(data: bytes) -> bool:
    """Return True for an entry that the reader's protocol shows without its data."""
    return not data


@dataclass(frozen=True, slots=True)
class Figures:
    """Operations of one protocol."""

    ok: int
    failed: int
    unknown: int
    longest_gap_s: float
    """The longest time without an acknowledgment during the load."""
    gap_at_s: float
    """Start of that time, in seconds after the start of the load."""
    slowest_s: float


def figures(operations: Sequence[Operation], begin_ns: int, end_ns: int) -> dict[str, Figures]:
    """Return the figures of each protocol, of all reads, and of all writes."""
    groups: dict[str, list[Operation]] = {
        each.value: [it for it in operations if it.protocol is each and it.value is not None] for each in Protocol
    }
    groups["reads"] = [each for each in operations if each.value is None]
    groups["all writes"] = [each for each in operations if each.value is not None]
    return {name: _figures(group, begin_ns, end_ns) for name, group in groups.items()}


def _figures(operations: Sequence[Operation], begin_ns: int, end_ns: int) -> Figures:
    counts = {outcome: sum(each.outcome is outcome for each in operations) for outcome in Outcome}
    ok = [each for each in operations if each.outcome is Outcome.OK]
    answers = [begin_ns, *sorted(each.answered_ns for each in ok if begin_ns <= each.answered_ns <= end_ns), end_ns]
    gap_ns, gap_at_ns = max((later - earlier, earlier) for earlier, later in pairwise(answers))
    slowest_ns = max((each.answered_ns - each.called_ns for each in ok), default=0)
    return Figures(
        counts[Outcome.OK],
        counts[Outcome.FAILED],
        counts[Outcome.UNKNOWN],
        longest_gap_s=gap_ns / 1e9,
        gap_at_s=(gap_at_ns - begin_ns) / 1e9,
        slowest_s=slowest_ns / 1e9,
    )
