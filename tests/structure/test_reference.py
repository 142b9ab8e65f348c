"""The generated pages of docs/reference are what the code says now."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reference import metrics
from tests.reference.pages import PAGES


@pytest.mark.parametrize(("path", "page"), PAGES.items(), ids=[path.name for path in PAGES])
def test_a_generated_page_is_not_stale(path: Path, page: Callable[[], str]) -> None:
    assert path.read_text(encoding="utf-8") == page(), "write it anew: python -m tests.reference"


def test_each_group_of_counters_is_found() -> None:
    """Names are read out of the source: a dictionary that moves away must not empty the page."""
    for name in ("gossip_events_lost", "gossip_dropped_replay", "gossip_ignored_leaving", "control_requests"):
        assert name in metrics.counter_names()
    for name in ("garlic_farm_silent", "garlic_farm_challenges", "raft_reports", "raft_disk_groups"):
        assert name in metrics.counter_names()
    assert {"raft_without_effect_forged", "foundings_ignored"} <= set(metrics.counter_names())
