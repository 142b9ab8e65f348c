"""Chunks of seeds, and the file with the progress of an interrupted run."""

from pathlib import Path

from tests.simulation.farm.__main__ import ChunkProgress, chunks


def test_chunks_cover_the_range_of_seeds() -> None:
    assert list(chunks("5:28")) == [(5, 15), (15, 25), (25, 28)]


def test_progress_continues_after_an_interruption(tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    ChunkProgress.read(file).add(0, failed=1, virtual_hours=0.5)
    resumed = ChunkProgress.read(file)
    resumed.add(10, failed=0, virtual_hours=0.25)
    assert (ChunkProgress.read(file).finished, ChunkProgress.read(file).failed) == ([0, 10], 1)
    assert ChunkProgress.read(file).virtual_hours == 0.75
