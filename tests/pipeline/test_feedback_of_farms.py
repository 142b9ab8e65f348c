"""Feedback to several farms: separate weights and submissions; a failed or hanging farm delays only itself.

Each farm has its own nodes, its own client key and its own place in the queue. A few threads serve all farms.
"""

import base64
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn, cast

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bridge.wire.log.proof import proven
from pipeline.cli.places import Farms, Nodes
from pipeline.feedback import farms
from pipeline.feedback.farms import FarmsFeedback, FarmsFile, NodesReach, Reach
from pipeline.feedback.submitting import NodeSubmission, Submission
from pipeline.source.endpoint import TIMEOUT_SECONDS, load_credentials
from pipeline.source.farms import FarmNodes, nodes_of_farms
from pipeline.source.log_client import FarmLogError
from pipeline.tables.recent import by_farm, newest, recent_rows
from tests.pipeline.farm_log_server import MadeUpLog, arrow_entries_of, serve_log
from tests.pipeline.test_feedback import OneReach, slow_farm


def a_farm(number: int, periods: int = 6, slow_from: int = 3) -> MadeUpLog:
    """Return the log of a farm whose slow server needs a factor."""
    log = slow_farm(periods, slow_from)
    # The log begins after the configuration, so the batch contains the whole log.
    log.first_index, log.entries = 2, log.entries[1:]
    log.cluster_id = f"{number:032x}"
    log.submit_answer = (HTTPStatus.OK, {"outcome": "committed", "index": 100 + number, "reason": ""})
    return log


def one_batch(**logs: MadeUpLog) -> pa.Table:
    return newest(pa.concat_tables(recent_rows(arrow_entries_of(log, name)) for name, log in logs.items()))


def write_farms(file: Path, **named: dict[str, Any]) -> Path:
    aside = file.with_suffix(".new")
    aside.write_text(json.dumps({"farms": named}))
    return aside.rename(file)


def a_key(path: Path, key: Ed25519PrivateKey) -> Path:
    """Write a client key file like `garlicfarm keys new-client`."""
    path.write_text(f'private_key = "{base64.b64encode(key.private_bytes_raw()).decode()}"\n')
    path.chmod(0o600)
    return path


@contextmanager
def two_farms(place: Path) -> Iterator[tuple[MadeUpLog, MadeUpLog, Path]]:
    one, two = a_farm(1), a_farm(2)
    with ExitStack() as stack:
        addresses = [
            stack.enter_context(serve_log(log, place / f"{name}.sock")) for log, name in ((one, "one"), (two, "two"))
        ]
        named = {name: {"nodes": [address]} for name, address in zip(("one", "two"), addresses, strict=True)}
        yield one, two, write_farms(place / "farms.json", **named)


def submitted_entries(log: MadeUpLog) -> list[dict[str, Any]]:
    return [json.loads(body) for body in log.submitted]


def test_factors_of_each_farm_depend_only_on_its_log(tmp_path: Path) -> None:
    log_lines: list[str] = []
    with two_farms(tmp_path) as (one, two, file):
        # The log of the second farm is longer, and its server is slow in other periods.
        longer = a_farm(2, periods=9, slow_from=7)
        two.entries, two.log_time_ms = longer.entries, longer.log_time_ms
        feedback = FarmsFeedback(FarmsFile(file, log_lines.append), log_lines.append)
        feedback.after_batch(one_batch(one=one, two=two))
        feedback.finish()
        apart = []
        for name, log in (("one", one), ("two", two)):
            alone = FarmsFeedback(FarmsFile(file, log_lines.append), log_lines.append)
            alone.after_batch(one_batch(**{name: log}))
            alone.finish()
            apart.append(submitted_entries(log))
    for entries, log in zip(apart, (one, two), strict=True):
        together, alone_entry = entries
        assert together == alone_entry
        assert together["factors"]["throughIndex"] == log.commit_index
    assert apart[0][0]["factors"]["factors"] != apart[1][0]["factors"]["factors"]
    assert (
        sorted(log_lines)[:2]
        == [f"one: factors (leaves: 1), made from the log up to {one.commit_index}, are entry 101"] * 2
    )


@pytest.mark.parametrize("fault", ["unreachable", "refusing", "other-cluster"])
def test_failed_farm_does_not_block_other_farm(tmp_path: Path, fault: str) -> None:
    log_lines: list[str] = []
    with two_farms(tmp_path) as (one, two, file):
        batch = one_batch(one=one, two=two)
        match fault:
            case "unreachable":
                write_farms(file, one={"nodes": ["absent.sock"]}, two={"nodes": ["two.sock"]})
            case "refusing":
                one.submit_answer = (HTTPStatus.SERVICE_UNAVAILABLE, {"outcome": "busy", "reason": "too much"})
            case _:
                one.cluster_id = "f" * 32
        feedback = FarmsFeedback(FarmsFile(file, log_lines.append), log_lines.append)
        feedback.after_batch(batch)
        feedback.finish()
    assert len(two.submitted) == 1
    words = {"unreachable": "absent.sock", "refusing": "busy too much", "other-cluster": "belongs to the cluster"}[
        fault
    ]
    (line,) = [text for text in log_lines if text.startswith("one: ")]
    assert line.startswith("one: factors not submitted: ")
    assert words in line
    assert len(one.submitted) == (fault == "refusing")


def test_hanging_farm_does_not_delay_batches_or_other_farms(tmp_path: Path) -> None:
    finish, requested = threading.Event(), threading.Event()

    class Hanging(MadeUpLog):
        def view(self) -> dict[str, Any]:
            requested.set()
            finish.wait(60)
            return super().view()

    log_lines: list[str] = []
    with two_farms(tmp_path) as (one, two, file):
        hanging = Hanging(**vars(a_farm(3)))
        with serve_log(hanging, tmp_path / "three.sock"):
            write_farms(file, **{name: {"nodes": [f"{name}.sock"]} for name in ("one", "two", "three")})
            feedback = FarmsFeedback(FarmsFile(file, log_lines.append), log_lines.append)
            try:
                # given a farm whose node accepts a request and does not reply
                feedback.after_batch(one_batch(three=hanging))
                assert requested.wait(60)
                # when batches of the other farms arrive, and another batch of the hanging farm
                feedback.after_batch(one_batch(one=one, three=hanging))
                feedback.after_batch(one_batch(two=two))
                _await(lambda: [len(log.submitted) for log in (one, two)] == [1, 1])
                assert hanging.submitted == []
            finally:
                finish.set()
            # then the hanging farm gets one submission after its reply
            feedback.finish()
            assert len(hanging.submitted) == 1


def _await(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until `condition` is true, while worker threads end or hang."""
    until_s = monotonic() + seconds
    while not condition() and monotonic() < until_s:
        for thread in [each for each in threading.enumerate() if each.name.startswith("feedback ")]:
            thread.join(0.02)
    assert condition()


class ControlledLooks:
    """A replacement for `FarmsFeedback._submit_factors`: it hangs for some farms until the test sets `ended`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, hanging: set[str]) -> None:
        self.hanging, self.ended, self.began = hanging, threading.Event(), threading.Semaphore(0)
        self.processed, self.concurrent, self.most_concurrent = list[str](), 0, 0
        self._lock, self.seconds = threading.Lock(), 0.0
        monkeypatch.setattr(FarmsFeedback, "_submit_factors", lambda _self, cluster, _farm, _rows: self.look(cluster))
        monkeypatch.setattr(farms, "monotonic", lambda: self.seconds)

    def look(self, cluster: str) -> None:
        """Process one farm in a worker thread."""
        with self._lock:
            self.concurrent += 1
            self.most_concurrent = max(self.most_concurrent, self.concurrent)
        if cluster in self.hanging:
            self.began.release()
            assert self.ended.wait(60)
            self.seconds += farms.SLOW_SECONDS
        with self._lock:
            self.concurrent -= 1
            self.processed.append(cluster)


def batch_of(clusters: list[str]) -> pa.Table:
    return pa.table({"farm": clusters, "farm_name": clusters})


def test_hundred_farms_share_worker_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = [f"{number:032x}" for number in range(100)]
    looks = ControlledLooks(monkeypatch, {*clusters})
    feedback = FarmsFeedback(OneReach(Reach(cast("Submission", None), {})), lambda _: None)
    feedback.after_batch(batch_of(clusters))
    for _ in range(farms.WORKERS):
        assert looks.began.acquire(timeout=60)
    looks.ended.set()
    feedback.finish()
    assert sorted(looks.processed) == clusters
    assert looks.most_concurrent == farms.WORKERS


def test_slow_farms_use_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = [f"{number:032x}" for number in range(2 * farms.WORKERS)]
    quick = [f"{number:032x}" for number in range(1_000, 1_100)]
    looks = ControlledLooks(monkeypatch, {*hanging})
    feedback = FarmsFeedback(OneReach(Reach(cast("Submission", None), {})), lambda _: None)
    # given farms that were slow before
    looks.ended.set()
    feedback.after_batch(batch_of(hanging))
    feedback.finish()
    assert sorted(looks.processed) == hanging
    # when more farms hang than there are threads, and other farms follow
    looks.ended.clear()
    looks.began = threading.Semaphore(0)
    feedback.after_batch(batch_of(hanging))
    for _ in range(farms.SLOW_WORKERS):
        assert looks.began.acquire(timeout=60)
    looks.processed.clear()
    feedback.after_batch(batch_of(quick))
    _await(lambda: sorted(looks.processed) == quick)
    # then the other farms are processed while the slow farms hang
    assert looks.concurrent == farms.SLOW_WORKERS
    looks.ended.set()
    feedback.finish()
    assert sorted(looks.processed) == sorted([*hanging, *quick])


def test_unreachable_farms_delay_next_farm_briefly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.feedback.submitting.CONTACT_SECONDS", 0.1)
    monkeypatch.setattr(farms, "WORKERS", 2)
    one, log_lines = a_farm(100), list[str]()
    with ExitStack() as stack:
        # given nodes that accept connections and do not reply
        for number in range(8):
            unresponsive = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
            unresponsive.bind(str(tmp_path / f"silent-{number}.sock"))
            unresponsive.listen()
        stack.enter_context(serve_log(one, tmp_path / "one.sock"))
        names = [*(f"silent-{number}" for number in range(8)), "one"]
        file = write_farms(tmp_path / "farms.json", **{name: {"nodes": [f"{name}.sock"]} for name in names})
        feedback = FarmsFeedback(FarmsFile(file, log_lines.append), log_lines.append)
        feedback.after_batch(one_batch(**{name: a_farm(place) for place, name in enumerate(names[:-1])}, one=one))
        # then the whole batch takes less time than one reply timeout
        feedback.finish(TIMEOUT_SECONDS)
    assert len(one.submitted) == 1
    assert sorted(text.partition(":")[0] for text in log_lines if "factors not submitted" in text) == names[:-1]


def test_queued_farm_keeps_only_its_own_rows_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FarmsFeedback, "_start_worker", lambda _: None)
    feedback = FarmsFeedback(OneReach(Reach(cast("Submission", None), {})), print)
    small, large = a_farm(1), a_farm(2, periods=600)
    found = recent_rows(pa.concat_tables([arrow_entries_of(small), arrow_entries_of(large)]))
    feedback.after_batch(found)
    (waiting,) = feedback._farms[small.cluster_id].waiting
    assert waiting == next(rows for rows in by_farm(found) if rows.column("farm")[0].as_py() == small.cluster_id)
    assert waiting.get_total_buffer_size() < found.get_total_buffer_size() / 2


def test_hanging_farm_keeps_newest_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farms, "QUEUE_BATCHES", 3)
    began, ended, seen = threading.Event(), threading.Event(), list[int]()

    class Reached:
        def of(self, _cluster: str, _name: str | None) -> None:
            began.set()
            ended.wait(60)

    def look(_self: FarmsFeedback, _cluster: str, _farm: object, rows: pa.Table) -> None:
        seen.append(rows.num_rows)
        Reached().of("", None)

    monkeypatch.setattr(FarmsFeedback, "_submit_factors", look)
    feedback = FarmsFeedback(Reached(), lambda _: None)
    rows = one_batch(one=a_farm(1))
    feedback.after_batch(rows.slice(0, 1))
    assert began.wait(60)
    for count in (2, 3, 4, 5, 6):
        feedback.after_batch(rows.slice(0, count))
    ended.set()
    feedback.finish()
    assert seen == [1, 4, 5, 6]


def test_entries_are_signed_with_key_of_their_farm(tmp_path: Path) -> None:
    keys = {name: Ed25519PrivateKey.generate() for name in ("one", "two")}
    log_lines: list[str] = []
    with two_farms(tmp_path) as (one, two, file):
        for name, key in keys.items():
            a_key(tmp_path / f"{name}.key", key)
        write_farms(file, **{name: {"nodes": [f"{name}.sock"], "client_key": f"{name}.key"} for name in keys})
        feedback = FarmsFeedback(FarmsFile(file, log_lines.append), log_lines.append)
        feedback.after_batch(one_batch(one=one, two=two))
        feedback.finish()
    for log, key in zip((one, two), keys.values(), strict=True):
        (entry,) = log.submitted
        proof = proven(entry, bytes.fromhex(log.cluster_id))
        assert proof is not None
        assert proof.public_key == key.public_key().public_bytes_raw()


def test_unreadable_client_key_is_reported_once(tmp_path: Path) -> None:
    log_lines: list[str] = []
    with two_farms(tmp_path) as (one, two, file):
        a_key(tmp_path / "open.key", Ed25519PrivateKey.generate()).chmod(0o644)
        write_farms(file, one={"nodes": ["one.sock"], "client_key": "open.key"}, two={"nodes": ["two.sock"]})
        feedback = FarmsFeedback(FarmsFile(file, log_lines.append), log_lines.append)
        for _ in range(2):
            feedback.after_batch(one_batch(one=one, two=two))
            feedback.finish()
        assert (len(one.submitted), len(two.submitted)) == (0, 1)
        assert ["other users can read" in text for text in log_lines if text.startswith("one: ")] == [True]
        # when the file changes, it is read again
        write_farms(file, one={"nodes": ["one.sock"]}, two={"nodes": ["two.sock"]})
        feedback.after_batch(one_batch(one=one))
        feedback.finish()
    assert (len(one.submitted), len(two.submitted)) == (1, 1)


@pytest.mark.parametrize("place", ["nodes", "farms"])
def test_corrected_key_is_read_without_other_change(tmp_path: Path, place: str) -> None:
    log_lines: list[str] = []
    key = a_key(tmp_path / "a.key", Ed25519PrivateKey.generate())
    with two_farms(tmp_path) as (one, _two, file):
        write_farms(file, one={"nodes": ["one.sock"], "client_key": "a.key"})
        chosen = Farms(file=file) if place == "farms" else Nodes(nodes=(str(tmp_path / "one.sock"),))
        reaches = chosen.reaches(None if place == "farms" else key, log_lines.append)
        key.write_text("damaged")
        feedback = FarmsFeedback(reaches, log_lines.append)
        for _ in range(2):
            feedback.after_batch(one_batch(one=one))
            feedback.finish()
        assert one.submitted == []
        (line,) = log_lines
        assert "a.key is not a client key file" in line
        a_key(key, Ed25519PrivateKey.generate())
        feedback.after_batch(one_batch(one=one))
        feedback.finish()
    assert len(one.submitted) == 1


def test_corrected_token_is_used_for_submissions(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    reaches = NodesReach(FarmNodes(("https://[::1]:1",), token_file=token), "cluster", print)
    first = reaches.load()
    assert reaches.of("cluster", None) is first
    token.write_text("of another node")
    second = reaches.of("cluster", None)
    assert second is not None
    assert isinstance(second.submission, NodeSubmission)
    assert second.submission.credentials == load_credentials(token, None)


def test_submission_skips_unlisted_farm_and_directory(tmp_path: Path) -> None:
    log_lines: list[str] = []
    with two_farms(tmp_path) as (one, two, file):
        write_farms(file, one={"directory": "copy"}, other={"nodes": ["two.sock"]})
        feedback = FarmsFeedback(FarmsFile(file, log_lines.append), log_lines.append)
        for _ in range(2):
            feedback.after_batch(one_batch(one=one, two=two))
            feedback.finish()
        # An invalid file of farms does not change anything.
        file.write_text("{")
        feedback.after_batch(one_batch(one=one, two=two))
        feedback.finish()
    assert (one.submitted, two.submitted) == ([], [])
    assert log_lines == ["one: no factors are submitted to it, since a directory can only be read"]


def test_recent_rows_are_limited_per_farm(monkeypatch: pytest.MonkeyPatch) -> None:
    early, late = a_farm(1, periods=60, slow_from=58), a_farm(2, periods=6)
    for entry in late.entries:
        entry["logTimeMs"] += 7 * 86_400_000
    rows = one_batch(early=early, late=late)
    counts = {each.column("farm_name")[0].as_py(): each.num_rows for each in by_farm(rows)}
    # Twenty minutes contain forty periods, and both ends count. The other farm is a week ahead.
    assert counts == {"early": 41 * 4, "late": 6 * 4}
    monkeypatch.setattr("pipeline.tables.recent.ROWS_MAX", 40)
    shared = [each.column("index").to_pylist() for each in by_farm(one_batch(early=early, late=late))]
    assert [(len(each), each[-1]) for each in shared] == [(20, early.commit_index), (20, late.commit_index)]


def test_client_key_of_several_farms_belongs_in_their_file(tmp_path: Path) -> None:
    file = write_farms(tmp_path / "farms.json", one={"nodes": ["a.sock"]})
    place = Farms(file=file)
    assert isinstance(place.reaches(None, lambda _: None), FarmsFile)
    with pytest.raises(FarmLogError, match=r"set `client_key` of each farm in .*farms\.json"):
        place.reaches(tmp_path / "a.key", lambda _: None)
    assert nodes_of_farms(write_farms(file, one={"nodes": ["https://[::1]:1"], "token_file": "t"}))["one"] is not None
    write_farms(file, one={"directory": "copy", "client_key": "a.key"})
    with pytest.raises(FarmLogError, match="has a client_key, but a directory does not accept factors"):
        place.options()


def test_farms_after_failed_read_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_farms(tmp_path / "farms.json", one={"nodes": ["one.sock"]})
    reaches = FarmsFile(file, lambda _: None)
    write_farms(file, one={"nodes": ["one.sock"]}, two={"nodes": ["two.sock"]})

    def fail(_path: Path) -> NoReturn:
        raise FarmLogError("too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(farms, "nodes_of_farms", fail)
        assert reaches.of("cluster", "two") is None
    assert reaches.of("cluster", "two") is not None


def test_farms_changed_while_read_at_start_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_farms(tmp_path / "farms.json", one={"nodes": ["one.sock"]})

    def read_before_change(path: Path) -> dict[str, FarmNodes | None]:
        found = nodes_of_farms(path)
        write_farms(file, one={"nodes": ["one.sock"]}, two={"nodes": ["two.sock"]})
        return found

    with monkeypatch.context() as patched:
        patched.setattr(farms, "nodes_of_farms", read_before_change)
        reaches = FarmsFile(file, lambda _: None)
    assert reaches.of("cluster", "two") is not None
