"""The generated pages of docs/reference are what the code says now."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reference.pages import PAGES


@pytest.mark.parametrize(("path", "page"), PAGES.items(), ids=[path.name for path in PAGES])
def test_a_generated_page_is_not_stale(path: Path, page: Callable[[], str]) -> None:
    assert path.read_text(encoding="utf-8") == page(), "write it anew: python -m tests.reference"
