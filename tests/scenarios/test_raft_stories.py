"""Every story in `raft/` happens exactly as it is told (rewrite them with REWRITE_STORIES=1, then read the change)."""

import os
from pathlib import Path

import pytest

from tests.scenarios.raft_story import run_story

STORIES = sorted((Path(__file__).parent / "raft").glob("*.txt"))


def test_there_are_stories() -> None:
    assert len(STORIES) >= 8


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_story_happens_as_it_is_told(path: Path) -> None:
    told, happened = run_story(path)
    if os.environ.get("REWRITE_STORIES"):
        path.write_text(happened, encoding="utf-8")
        return
    assert happened == told
