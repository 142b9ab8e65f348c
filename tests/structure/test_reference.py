"""The generated pages of docs/reference match the code."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reference.pages import PAGES


@pytest.mark.parametrize(("path", "page"), PAGES.items(), ids=[path.name for path in PAGES])
def test_generated_page_matches_code(path: Path, page: Callable[[], str]) -> None:
    assert path.read_text(encoding="utf-8") == page(), "write it again: python -m tests.reference"
