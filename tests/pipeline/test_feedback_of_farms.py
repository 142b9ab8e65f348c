"""Feedback to several farms: each is weighed and submitted apart, and none waits for another."""

import base64
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import Any, cast

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pyspark.sql import SparkSession

from bridge.wire.log.proof import proven
from pipeline.cli.places import Farms
from pipeline.feedback import farms
from pipeline.feedback.farms import FarmsFeedback, FarmsFile, OneReach, Reach
from pipeline.feedback.submitting import Submission
from pipeline.source.endpoint import TIMEOUT_SECONDS
from pipeline.source.farms import nodes_of_farms
from pipeline.source.log_client import FarmLogError
from pipeline.tables.recent import by_farm, newest, recent_rows
from tests.pipeline.farm_log_server import MadeUpLog, arrow_entries_of, served
from tests.pipeline.test_feedback import slow_farm

NO_SPARK = cast("SparkSession", None)
"""The batches of these tests are whole logs, so nothing is looked up before them."""


def a_farm(number: int, periods: int = 6, slow_from: int = 3) -> MadeUpLog:
    """A farm that has something to be told."""
    log = slow_farm(periods, slow_from)
    # without the configuration, so that a batch with the whole log leaves nothing before it
    log.first_index, log.entries = 2, log.entries[1:]
    log.cluster_id = f"{number:032x}"
    log.submit_answer = (HTTPStatus.OK, {"outcome": "committed", "index": 100 + number, "reason": ""})
    return log


def one_batch(**logs: MadeUpLog) -> pa.Table:
    """What a batch with the whole logs of these farms hands over."""
    return newest(pa.concat_tables(recent_rows(arrow_entries_of(log, name)) for name, log in logs.items()))


def written(file: Path, **named: dict[str, Any]) -> Path:
    """The file of farms."""
    aside = file.with_suffix(".new")
    aside.write_text(json.dumps({"farms": named}))
    return aside.rename(file)


def a_key(path: Path, key: Ed25519PrivateKey) -> Path:
    """A client key file as `garlicfarm keys new-client` makes it."""
    path.write_text(f'private_key = "{base64.b64encode(key.private_bytes_raw()).decode()}"\n')
    path.chmod(0o600)
    return path


@contextmanager
def two_farms(place: Path) -> Iterator[tuple[MadeUpLog, MadeUpLog, Path]]:
    """Two farms and the file that names them."""
    one, two = a_farm(1), a_farm(2)
    with ExitStack() as held:
        addresses = [
            held.enter_context(served(log, place / f"{name}.sock")) for log, name in ((one, "one"), (two, "two"))
        ]
        named = {name: {"nodes": [address]} for name, address in zip(("one", "two"), addresses, strict=True)}
        yield one, two, written(place / "farms.json", **named)


def submitted(log: MadeUpLog) -> list[dict[str, Any]]:
    return [json.loads(body) for body in log.submitted]


def test_each_farm_is_told_what_follows_from_its_own_log_alone(tmp_path: Path) -> None:
    told: list[str] = []
    with two_farms(tmp_path) as (one, two, file):
        # the second has a longer log, and its server lags from elsewhere on
        longer = a_farm(2, periods=9, slow_from=7)
        two.entries, two.log_time_ms = longer.entries, longer.log_time_ms
        feedback = FarmsFeedback(NO_SPARK, FarmsFile(file, told.append), told.append)
        feedback.after_batch(one_batch(one=one, two=two))
        feedback.finish()
        apart = []
        for name, log in (("one", one), ("two", two)):
            alone = FarmsFeedback(NO_SPARK, FarmsFile(file, told.append), told.append)
            alone.after_batch(one_batch(**{name: log}))
            alone.finish()
            apart.append(submitted(log))
    for entries, log in zip(apart, (one, two), strict=True):
        together, alone_entry = entries
        assert together == alone_entry
        assert together["factors"]["throughIndex"] == log.commit_index
    assert apart[0][0]["factors"]["factors"] != apart[1][0]["factors"]["factors"]
    assert (
        sorted(told)[:2]
        == [
            f"one: factors of 1 leaves, made from the log up to {one.commit_index}, are entry 101",
        ]
        * 2
    )


@pytest.mark.parametrize("fault", ["gone", "refuses", "another cluster"])
def test_a_farm_that_is_down_or_refuses_is_told_and_the_other_gets_its_factors(tmp_path: Path, fault: str) -> None:
    told: list[str] = []
    with two_farms(tmp_path) as (one, two, file):
        batch = one_batch(one=one, two=two)
        match fault:
            case "gone":
                written(file, one={"nodes": ["absent.sock"]}, two={"nodes": ["two.sock"]})
            case "refuses":
                one.submit_answer = (HTTPStatus.SERVICE_UNAVAILABLE, {"outcome": "busy", "reason": "too much"})
            case _:
                one.cluster_id = "f" * 32
        feedback = FarmsFeedback(NO_SPARK, FarmsFile(file, told.append), told.append)
        feedback.after_batch(batch)
        feedback.finish()
    assert len(two.submitted) == 1
    words = {"gone": "absent.sock", "refuses": "busy too much", "another cluster": "belongs to the cluster"}[fault]
    (of_one,) = [text for text in told if text.startswith("one: ")]
    assert of_one.startswith("one: factors not submitted: ")
    assert words in of_one
    assert len(one.submitted) == (fault == "refuses")


def test_a_farm_that_hangs_holds_up_neither_the_batch_nor_the_other_farms(tmp_path: Path) -> None:
    ended, asked = threading.Event(), threading.Event()

    class Hanging(MadeUpLog):
        def view(self) -> dict[str, Any]:
            asked.set()
            ended.wait(60)
            return super().view()

    told: list[str] = []
    with two_farms(tmp_path) as (one, two, file):
        hanging = Hanging(**vars(a_farm(3)))
        with served(hanging, tmp_path / "three.sock"):
            written(file, **{name: {"nodes": [f"{name}.sock"]} for name in ("one", "two", "three")})
            feedback = FarmsFeedback(NO_SPARK, FarmsFile(file, told.append), told.append)
            try:
                # given a farm whose node takes the question and says nothing
                feedback.after_batch(one_batch(three=hanging))
                assert asked.wait(60)
                # when batches of the others come, with one of its own between them
                feedback.after_batch(one_batch(one=one, three=hanging))
                feedback.after_batch(one_batch(two=two))
                _await(lambda: [len(log.submitted) for log in (one, two)] == [1, 1])
                assert hanging.submitted == []
            finally:
                ended.set()
            # then it gets its own when it answers again, once
            feedback.finish()
            assert len(hanging.submitted) == 1


def _await(holds: Callable[[], bool], seconds: float = 30) -> None:
    """Waits for threads that end, beside such as hang."""
    until_s = monotonic() + seconds
    while not holds() and monotonic() < until_s:
        for thread in [each for each in threading.enumerate() if each.name.startswith("feedback ")]:
            thread.join(0.02)
    assert holds()


class Looks:
    """Looks at farms that end when they are told to, in place of those that ask nodes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, hanging: set[str]) -> None:
        self.hanging, self.ended, self.begun = hanging, threading.Event(), threading.Semaphore(0)
        self.looked_at, self.at_once, self.most_at_once = list[str](), 0, 0
        self._lock, self.seconds = threading.Lock(), 0.0
        monkeypatch.setattr(FarmsFeedback, "_look", lambda _self, cluster, _farm, _rows: self.look(cluster))
        monkeypatch.setattr(farms, "monotonic", lambda: self.seconds)

    def look(self, cluster: str) -> None:
        """What a thread does for a farm."""
        with self._lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        if cluster in self.hanging:
            self.begun.release()
            assert self.ended.wait(60)
            self.seconds += farms.SLOW_SECONDS
        with self._lock:
            self.at_once -= 1
            self.looked_at.append(cluster)


def batch_of(clusters: list[str]) -> pa.Table:
    return pa.table({"farm": clusters, "farm_name": clusters})


def test_a_hundred_farms_share_the_threads_and_each_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = [f"{number:032x}" for number in range(100)]
    looks = Looks(monkeypatch, {*clusters})
    feedback = FarmsFeedback(NO_SPARK, OneReach(Reach(cast("Submission", None), {})), lambda _: None)
    feedback.after_batch(batch_of(clusters))
    for _ in range(farms.WORKERS):
        assert looks.begun.acquire(timeout=60)
    looks.ended.set()
    feedback.finish()
    assert sorted(looks.looked_at) == clusters
    assert looks.most_at_once == farms.WORKERS


def test_farms_that_hang_again_leave_most_threads_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = [f"{number:032x}" for number in range(2 * farms.WORKERS)]
    quick = [f"{number:032x}" for number in range(1_000, 1_100)]
    looks = Looks(monkeypatch, {*hanging})
    feedback = FarmsFeedback(NO_SPARK, OneReach(Reach(cast("Submission", None), {})), lambda _: None)
    # given farms that were slow once
    looks.ended.set()
    feedback.after_batch(batch_of(hanging))
    feedback.finish()
    assert sorted(looks.looked_at) == hanging
    # when more of them hang than there are threads, and others come after them
    looks.ended.clear()
    looks.begun = threading.Semaphore(0)
    feedback.after_batch(batch_of(hanging))
    for _ in range(farms.SLOW_WORKERS):
        assert looks.begun.acquire(timeout=60)
    looks.looked_at.clear()
    feedback.after_batch(batch_of(quick))
    _await(lambda: sorted(looks.looked_at) == quick)
    # then the others have been looked at while those hang
    assert looks.at_once == farms.SLOW_WORKERS
    looks.ended.set()
    feedback.finish()
    assert sorted(looks.looked_at) == sorted([*hanging, *quick])


def test_more_farms_without_an_answer_than_threads_hold_up_the_next_one_for_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.feedback.submitting.CONTACT_SECONDS", 0.1)
    monkeypatch.setattr(farms, "WORKERS", 2)
    one, told = a_farm(100), list[str]()
    with ExitStack() as held:
        # given nodes that take a connection and say nothing
        for number in range(8):
            silent = held.enter_context(closing(socket.socket(socket.AF_UNIX)))
            silent.bind(str(tmp_path / f"silent-{number}.sock"))
            silent.listen()
        held.enter_context(served(one, tmp_path / "one.sock"))
        names = [*(f"silent-{number}" for number in range(8)), "one"]
        file = written(tmp_path / "farms.json", **{name: {"nodes": [f"{name}.sock"]} for name in names})
        feedback = FarmsFeedback(NO_SPARK, FarmsFile(file, told.append), told.append)
        feedback.after_batch(one_batch(**{name: a_farm(place) for place, name in enumerate(names[:-1])}, one=one))
        # then all of it takes less than one of the waits that are usual afterwards
        feedback.finish(TIMEOUT_SECONDS)
    assert len(one.submitted) == 1
    assert sorted(text.partition(":")[0] for text in told if "factors not submitted" in text) == names[:-1]


def test_what_waits_for_a_farm_holds_no_rows_of_another_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FarmsFeedback, "_start_worker", lambda _: None)
    feedback = FarmsFeedback(NO_SPARK, OneReach(Reach(cast("Submission", None), {})), print)
    small, large = a_farm(1), a_farm(2, periods=600)
    found = recent_rows(pa.concat_tables([arrow_entries_of(small), arrow_entries_of(large)]))
    feedback.after_batch(found)
    (waiting,) = feedback._farms[small.cluster_id].waiting
    assert waiting == next(rows for rows in by_farm(found) if rows.column("farm")[0].as_py() == small.cluster_id)
    assert waiting.get_total_buffer_size() < found.get_total_buffer_size() / 2


def test_of_a_farm_that_hangs_for_long_the_newest_batches_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farms, "QUEUE_BATCHES", 3)
    begun, ended, seen = threading.Event(), threading.Event(), list[int]()

    class Reached:
        def of(self, _cluster: str, _name: str | None) -> None:
            begun.set()
            ended.wait(60)

    def looked(_self: FarmsFeedback, _cluster: str, _farm: object, rows: pa.Table) -> None:
        seen.append(rows.num_rows)
        Reached().of("", None)

    monkeypatch.setattr(FarmsFeedback, "_look", looked)
    feedback = FarmsFeedback(NO_SPARK, Reached(), lambda _: None)
    rows = one_batch(one=a_farm(1))
    feedback.after_batch(rows.slice(0, 1))
    assert begun.wait(60)
    for count in (2, 3, 4, 5, 6):
        feedback.after_batch(rows.slice(0, count))
    ended.set()
    feedback.finish()
    assert seen == [1, 4, 5, 6]


def test_each_farms_entries_are_signed_with_its_own_key_for_its_own_cluster(tmp_path: Path) -> None:
    keys = {name: Ed25519PrivateKey.generate() for name in ("one", "two")}
    told: list[str] = []
    with two_farms(tmp_path) as (one, two, file):
        for name, key in keys.items():
            a_key(tmp_path / f"{name}.key", key)
        written(file, **{name: {"nodes": [f"{name}.sock"], "client_key": f"{name}.key"} for name in keys})
        feedback = FarmsFeedback(NO_SPARK, FarmsFile(file, told.append), told.append)
        feedback.after_batch(one_batch(one=one, two=two))
        feedback.finish()
    for log, key in zip((one, two), keys.values(), strict=True):
        (entry,) = log.submitted
        proof = proven(entry, bytes.fromhex(log.cluster_id))
        assert proof is not None
        assert proof.public_key == key.public_key().public_bytes_raw()


def test_a_farm_whose_key_cannot_be_read_is_told_once_and_gets_its_factors_when_the_file_names_another(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    with two_farms(tmp_path) as (one, two, file):
        a_key(tmp_path / "open.key", Ed25519PrivateKey.generate()).chmod(0o644)
        written(file, one={"nodes": ["one.sock"], "client_key": "open.key"}, two={"nodes": ["two.sock"]})
        feedback = FarmsFeedback(NO_SPARK, FarmsFile(file, told.append), told.append)
        for _ in range(2):
            feedback.after_batch(one_batch(one=one, two=two))
            feedback.finish()
        assert (len(one.submitted), len(two.submitted)) == (0, 1)
        assert ["other users can read" in text for text in told if text.startswith("one: ")] == [True]
        # when the file changes, it is read again
        written(file, one={"nodes": ["one.sock"]}, two={"nodes": ["two.sock"]})
        feedback.after_batch(one_batch(one=one))
        feedback.finish()
    assert (len(one.submitted), len(two.submitted)) == (1, 1)


def test_a_farm_that_left_the_file_and_a_directory_are_submitted_nothing(tmp_path: Path) -> None:
    told: list[str] = []
    with two_farms(tmp_path) as (one, two, file):
        written(file, one={"directory": "copy"}, other={"nodes": ["two.sock"]})
        feedback = FarmsFeedback(NO_SPARK, FarmsFile(file, told.append), told.append)
        for _ in range(2):
            feedback.after_batch(one_batch(one=one, two=two))
            feedback.finish()
        # and what is no file of farms changes nothing
        file.write_text("{")
        feedback.after_batch(one_batch(one=one, two=two))
        feedback.finish()
    assert (one.submitted, two.submitted) == ([], [])
    assert told == ["one: no factors are submitted to it, since a directory can only be read"]


def test_where_farms_are_many_each_keeps_its_own_recent_past_and_its_share_of_the_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    early, late = a_farm(1, periods=60, slow_from=58), a_farm(2, periods=6)
    for entry in late.entries:
        entry["logTimeMs"] += 7 * 86_400_000
    rows = one_batch(early=early, late=late)
    counts = {each.column("farm_name")[0].as_py(): each.num_rows for each in by_farm(rows)}
    # twenty minutes are forty periods, and both ends count; the other farm is a week ahead
    assert counts == {"early": 41 * 4, "late": 6 * 4}
    monkeypatch.setattr("pipeline.tables.recent.ROWS_MAX", 40)
    shared = [each.column("index").to_pylist() for each in by_farm(one_batch(early=early, late=late))]
    assert [(len(each), each[-1]) for each in shared] == [(20, early.commit_index), (20, late.commit_index)]


def test_the_options_of_one_farm_are_said_in_the_file_when_there_are_several(tmp_path: Path) -> None:
    file = written(tmp_path / "farms.json", one={"nodes": ["a.sock"]})
    place = Farms(file=file)
    assert isinstance(place.reaches(None, lambda _: None), FarmsFile)
    with pytest.raises(FarmLogError, match=r"set `client_key` of each farm in .*farms\.json"):
        place.reaches(tmp_path / "a.key", lambda _: None)
    assert nodes_of_farms(written(file, one={"nodes": ["https://[::1]:1"], "token_file": "t"}))["one"] is not None
    written(file, one={"directory": "copy", "client_key": "a.key"})
    with pytest.raises(FarmLogError, match="has a client_key, but a directory does not accept factors"):
        place.options()
