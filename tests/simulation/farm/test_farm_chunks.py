"""Chunks of seeds, and the file with the progress of an interrupted run."""

import json
from pathlib import Path
from threading import Event

import pytest

from tests.simulation.farm.__main__ import Chunk, ChunkProgress, chunks, run_chunks, version
from tests.simulation.farm.searching import read_summary

SUMMARY = "10 seeds, 0 failed, 0.25 virtual hours, 26 virtual seconds per second of processor time\n"
FAILED = SUMMARY.replace("0 failed", "2 failed (3 7)")


def test_chunks_cover_the_range_of_seeds() -> None:
    assert list(chunks("5:28")) == [(5, 15), (15, 25), (25, 28)]


def test_progress_continues_after_an_interruption(tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    ChunkProgress.read(file).add(Chunk(0, "abc", (3, 7), 0.5))
    ChunkProgress.read(file).add(Chunk(10, "abd-dirty", (), 0.25))
    progress = ChunkProgress.read(file)
    assert progress.chunks == [Chunk(0, "abc", (3, 7), 0.5), Chunk(10, "abd-dirty", (), 0.25)]
    assert (progress.failed, progress.virtual_hours) == ([3, 7], 0.75)


def test_finished_chunk_is_recorded_while_an_earlier_one_runs(tmp_path: Path) -> None:
    file, later_is_recorded = tmp_path / "progress.json", Event()

    class Progress(ChunkProgress):
        def add(self, chunk: Chunk) -> None:
            super().add(chunk)
            later_is_recorded.set()

    def search(first: int, _end: int) -> str:
        assert first == 10 or later_is_recorded.wait(60)
        return FAILED if first == 0 else SUMMARY

    run_chunks("0:20", 2, Progress(file), search)
    stored = json.loads(file.read_text())["chunks"]
    assert [(each["first"], each["failed"], each["version"]) for each in stored] == [
        (10, [], version()),
        (0, [3, 7], version()),
    ]


def test_finished_chunks_are_not_repeated(tmp_path: Path) -> None:
    file, ran = tmp_path / "progress.json", list[int]()
    ChunkProgress(file).add(Chunk(0, "abc", (), 0.5))

    def search(first: int, _end: int) -> str:
        ran.append(first)
        return SUMMARY

    run_chunks("0:20", 1, ChunkProgress.read(file), search)
    assert ran == [10]


def test_chunk_without_a_summary_ends_the_run() -> None:
    ran = list[int]()

    def search(first: int, _end: int) -> str:
        ran.append(first)
        return "seed 1: killed\n"

    with pytest.raises(SystemExit, match="without a summary"):
        run_chunks("0:1000", 1, ChunkProgress(None), search)
    assert len(ran) < 100


def test_summary_has_the_failed_seeds() -> None:
    assert read_summary(FAILED) == ((3, 7), 0.25)
    assert read_summary(SUMMARY) == ((), 0.25)
    assert read_summary("seed 1: killed\n") is None
