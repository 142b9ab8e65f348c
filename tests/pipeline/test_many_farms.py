"""Several farms in one stream: each with a place of its own, fairly, joining and leaving, none held up by another."""

import json
import pickle
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pipeline.run import ProblemReports
from pipeline.schemas import ENTRIES
from pipeline.source import farms, log_client
from pipeline.source.farm import FarmDataSource, FarmStreamReader, Offset
from pipeline.source.farms import ManyFarms, Unread
from pipeline.source.log_client import FarmLogError, FarmSilentError
from pipeline.source.shares import TASKS_MAX, Span, fair_shares, packed
from tests.pipeline.farm_log_server import MadeUpLog, served, three_servers
from tests.processes import END_S

ALL = ReadAllAvailable()


def named(place: Path, names: dict[str, Path]) -> None:
    """The file of farms: each read at one socket."""
    told = "".join(f"[farms.{name}]\nnodes = [{json.dumps(str(path))}]\n" for name, path in names.items())
    place.with_suffix(".new").write_text(told)
    place.with_suffix(".new").rename(place)


def a_farm(number: int, minutes: int = 1) -> MadeUpLog:
    log = three_servers(minutes)
    log.cluster_id = f"{number:032x}"
    return log


def stream_of(file: Path) -> FarmStreamReader:
    stream = FarmDataSource({"farms": str(file)}).streamReader(ENTRIES)
    assert isinstance(stream, FarmStreamReader)
    return stream


def read(stream: FarmStreamReader, start: Offset, end: Offset) -> dict[str, list[int]]:
    """The indexes of each farm in one batch, as workers read them."""
    found: dict[str, list[int]] = {}
    for task in stream.partitions(start, end):
        elsewhere = pickle.loads(pickle.dumps((stream, task)))  # noqa: S301 - our own
        for batch in elsewhere[0].read(elsewhere[1]):
            for row in batch.select(["farm_name", "index"]).to_pylist():
                found.setdefault(row["farm_name"], []).append(row["index"])
    return found


@contextmanager
def hanging(path: Path) -> Iterator[None]:
    """A node that takes connections and says nothing while the block runs."""
    ended = threading.Event()

    class Silent(MadeUpLog):
        def page(self, first: int, limit: int) -> dict[str, object]:
            ended.wait(END_S)
            return super().page(first, limit)

    with served(Silent(), path):
        try:
            yield
        finally:
            ended.set()


def test_each_farm_is_read_from_its_own_place_and_one_that_joins_or_leaves_needs_no_new_checkpoint(
    tmp_path: Path,
) -> None:
    one, two, three = a_farm(1), a_farm(2, minutes=2), a_farm(3)
    file, sockets = tmp_path / "farms.toml", {name: tmp_path / f"{name}.sock" for name in ("one", "two", "three")}
    with ExitStack() as held:
        for log, path in zip((one, two, three), sockets.values(), strict=True):
            held.enter_context(served(log, path))
        # given two farms
        named(file, {name: sockets[name] for name in ("one", "two")})
        stream = stream_of(file)
        start = stream.initialOffset()
        first = stream.latestOffset(start, ALL)
        assert read(stream, start, first) == {
            "one": [*range(1, one.commit_index + 1)],
            "two": [*range(1, two.commit_index + 1)],
        }
        # when one leaves, another joins, and the first goes on
        named(file, {name: sockets[name] for name in ("one", "three")})
        was, left = one.commit_index, two.commit_index
        one.tick(10_000)
        two.tick(10_000)
        second = stream.latestOffset(first, ALL)
        assert read(stream, first, second) == {"one": [was + 1], "three": [*range(1, three.commit_index + 1)]}
        # and of the one that left nothing is told any more, which would fall behind for ever
        assert set((stream.reportLatestOffset() or {})["farms"]) == {one.cluster_id, three.cluster_id}
        # and nothing is new
        assert stream.latestOffset(second, ALL) == second
        # then a process that begins anew repeats the same batch, and the one that comes back goes on where it was
        again = stream_of(file)
        assert read(again, first, second) == read(stream, first, second)
        named(file, sockets)
        third = stream_of(file).latestOffset(second, ALL)
        assert read(stream_of(file), second, third) == {"two": [left + 1]}


def test_a_farm_that_is_gone_or_hangs_holds_up_no_other_and_is_told_until_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(farms, "FIRST_PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(farms, "UNANSWERED_SECONDS", 0.0)
    monkeypatch.setattr(farms, "AGAIN_SECONDS", 1e-6)
    here, gone, file = a_farm(1), a_farm(2), tmp_path / "farms.toml"
    named(file, {name: tmp_path / f"{name}.sock" for name in ("here", "gone", "hangs")})
    with served(here, tmp_path / "here.sock"), hanging(tmp_path / "hangs.sock"):
        stream = stream_of(file)
        start = stream.initialOffset()
        end = stream.latestOffset(start, ALL)
        assert list(read(stream, start, end)) == ["here"]
        told = stream.reportLatestOffset()
        assert told is not None
        assert told["farms"] == {here.cluster_id: here.commit_index + 1}
        assert set(told["problems"]) == {"gone", "hangs"}
        assert "is the farm running" in told["problems"]["gone"]
        with served(gone, tmp_path / "gone.sock"):
            later = stream.latestOffset(end, ALL)
            assert list(read(stream, end, later)) == ["gone"]


def test_a_log_that_was_compacted_past_the_place_of_its_farm_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    one, two, file = a_farm(1), a_farm(2), tmp_path / "farms.toml"
    named(file, {name: tmp_path / f"{name}.sock" for name in ("one", "two")})
    one.first_index, one.entries = 8, one.entries[7:]
    with served(one, tmp_path / "one.sock"), served(two, tmp_path / "two.sock"):
        stream = stream_of(file)
        start: Offset = {"farms": {one.cluster_id: 3, two.cluster_id: 3}}
        end = stream.latestOffset(start, ALL)
        assert end["farms"] == {one.cluster_id: 3, two.cluster_id: two.commit_index + 1}
        told = stream.reportLatestOffset()
        assert told is not None
        assert "entries 3 to 7 were compacted away" in told["problems"]["one"]


def test_a_batch_that_is_repeated_waits_for_its_farm_and_says_which_if_it_does_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, file = a_farm(1), tmp_path / "farms.toml"
    named(file, {"one": tmp_path / "one.sock"})
    end: Offset = {"farms": {log.cluster_id: 4}, "begins": {log.cluster_id: {"next": 1}}}
    monkeypatch.setattr(log_client, "SILENCE_SECONDS", -1.0)
    with pytest.raises(FarmSilentError, match=f"{log.cluster_id}, a farm of the batch, answers"):
        stream_of(file).partitions({"farms": {}}, end)


def test_what_is_wrong_with_a_farm_is_told_once_and_so_is_that_it_is_over() -> None:
    said: list[str] = []
    told = ProblemReports(said.append)
    for problems in ({"blog": "silent"}, {"blog": "silent"}, {"blog": "silent", "shop": "gone"}, {"shop": "gone"}):
        told.take(problems)
    assert said == [
        "blog is not read, and the other farms are: silent",
        "shop is not read, and the other farms are: gone",
        "blog is read again",
    ]


def test_farm_that_leaves_the_file_is_not_reported_as_read_again() -> None:
    said: list[str] = []
    told = ProblemReports(said.append)
    told.take({"blog": "silent", "shop": "silent"})
    told.take({}, Unread(waiting=("shop",), unlisted=("blog",)))
    told.take({"shop": "still silent"}, Unread(unlisted=("blog",)))
    told.take({}, Unread(unlisted=("blog",)))
    assert said[2:] == ["blog is not listed any more", "shop is read again"]


def test_farm_whose_address_is_edited_waits_for_its_answer(tmp_path: Path) -> None:
    file = tmp_path / "farms.toml"
    named(file, {"dead": tmp_path / "one.sock"})
    farms = ManyFarms(file, 1_000)
    farms.look({}, thorough=True)
    assert set(farms.problems) == {"dead"}
    named(file, {"dead": tmp_path / "another.sock"})
    farms._read_again()
    assert (farms.problems, farms.unread) == ({}, Unread(waiting=("dead",)))
    named(file, {"other": tmp_path / "another.sock"})
    farms._read_again()
    assert farms.unread == Unread(waiting=("other",), unlisted=("dead",))


def test_two_names_of_one_farm_give_its_entries_once(tmp_path: Path) -> None:
    log, file = a_farm(1), tmp_path / "farms.toml"
    named(file, {"one": tmp_path / "one.sock", "same": tmp_path / "one.sock"})
    with served(log, tmp_path / "one.sock"):
        stream = stream_of(file)
        end = stream.latestOffset({"farms": {}}, ALL)
        assert list(read(stream, {"farms": {}}, end)) == ["one"]
        assert "name it once" in (stream.reportLatestOffset() or {})["problems"]["same"]


def test_a_file_that_becomes_wrong_leaves_the_farms_as_they_were(tmp_path: Path) -> None:
    log, file = a_farm(1), tmp_path / "farms.toml"
    named(file, {"one": tmp_path / "one.sock"})
    with served(log, tmp_path / "one.sock"):
        stream = stream_of(file)
        file.write_text("[farms.one")
        end = stream.latestOffset({"farms": {}}, ALL)
        assert end["farms"] == {log.cluster_id: log.commit_index + 1}
        assert "cannot be read" in (stream.reportLatestOffset() or {})["problems"][str(file)]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("", "required field `farms`"),
        ('[[farm]]\ndirectory = "a"', r"field `farm`; each farm is a table \[farms.NAME\] with nodes or a directory"),
        ("[farms]", "does not name a farm"),
        ("[farms.a]", "needs either `nodes`"),
        ('[farms.a]\nnode = "x"', "unknown field `node`"),
        ('[farms.a]\nnodes = ["x"]\nstart = "soon"', "use oldest, snapshot or an index"),
        ('[farms.a]\nnodes = ["x"]\ntoken_file = "absent"', "absent cannot be read"),
        ("farms = 5", "Expected `object`"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_with_what_is_wrong(tmp_path: Path, told: str, words: str) -> None:
    (tmp_path / "farms.toml").write_text(told)
    with pytest.raises(FarmLogError, match=words):
        stream_of(tmp_path / "farms.toml")


def test_a_backlog_takes_what_the_others_leave_of_a_batch(tmp_path: Path) -> None:
    long, short, file = a_farm(1, minutes=3), a_farm(2), tmp_path / "farms.toml"
    named(file, {name: tmp_path / f"{name}.sock" for name in ("long", "short")})
    with served(long, tmp_path / "long.sock"), served(short, tmp_path / "short.sock"):
        end = stream_of(file).latestOffset({"farms": {}}, ReadMaxRows(short.commit_index + 30))
        assert end["farms"] == {long.cluster_id: 31, short.cluster_id: short.commit_index + 1}


@given(some.dictionaries(some.text("abcdef", min_size=1), some.integers(0, 10_000)), some.integers(1, 20_000))
def test_shares_use_the_whole_limit_and_no_farm_gets_less_than_an_equal_share_while_another_gets_more(
    wanted: dict[str, int], limit: int
) -> None:
    shares = fair_shares(wanted, limit)
    assert sum(shares.values()) == min(limit, sum(wanted.values()))
    assert all(0 <= shares[farm] <= wanted[farm] for farm in wanted)
    least = min((shares[farm] for farm in wanted if shares[farm] < wanted[farm]), default=None)
    assert least is None or max(shares.values()) <= least + 1


@given(
    some.lists(some.tuples(some.integers(1, 10**6), some.integers(1, 400_000)), max_size=200),
    some.integers(1, 100_000),
)
def test_tasks_cover_every_entry_once_and_are_few_and_about_equal(told: list[tuple[int, int]], size: int) -> None:
    spans = [Span(f"{number:03}", first, first + count) for number, (first, count) in enumerate(told)]
    tasks = packed(spans, size)
    assert len(tasks) <= TASKS_MAX
    pieces = sorted(piece for task in tasks for piece in task)
    whole = [Span(span.farm, span.first, span.end) for span in spans]
    joined: list[Span] = []
    for piece in pieces:
        if joined and joined[-1].farm == piece.farm and joined[-1].end == piece.first:
            joined[-1] = Span(piece.farm, joined[-1].first, piece.end)
        else:
            joined.append(piece)
    assert joined == whole
    loads = [sum(piece.end - piece.first for piece in task) for task in tasks]
    assert not loads or max(loads) <= 2 * -(-sum(loads) // len(loads))


def test_one_farms_range_is_cut_by_the_size_of_a_task_and_a_thousand_small_ones_are_packed() -> None:
    assert packed([Span("a", 1, 120_001)], 50_000) == [
        [Span("a", 1, 50_001)],
        [Span("a", 50_001, 100_001)],
        [Span("a", 100_001, 120_001)],
    ]
    tasks = packed([Span(f"{number:04}", 7, 12) for number in range(1_000)], 50_000)
    assert [len(task) for task in tasks].count(63) + [len(task) for task in tasks].count(62) == TASKS_MAX
