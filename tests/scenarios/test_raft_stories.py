"""All stories in `raft/` have exactly the recorded effects (update with REWRITE_STORIES=1, then read the change)."""

import os
from pathlib import Path

from tests.effort import each_case
from tests.scenarios.raft_story import run_story

STORIES = sorted((Path(__file__).parent / "raft").glob("*.txt"))


def test_stories_exist() -> None:
    assert len(STORIES) >= 8


@each_case("path", STORIES, ids=lambda path: path.stem)
def test_story_has_recorded_effects(path: Path) -> None:
    expected, happened = run_story(path)
    if os.environ.get("REWRITE_STORIES"):
        path.write_text(happened, encoding="utf-8")
        return
    assert happened == expected
