"""The generated pages of docs/reference match the code. `make check` compares the rules of Raft."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reference.pages import PAGES
from tests.structure import raft_rules

COMPARED = {path: page for path, page in PAGES.items() if path != raft_rules.DOCUMENT}


@pytest.mark.parametrize(("path", "page"), COMPARED.items(), ids=[path.name for path in COMPARED])
def test_generated_page_matches_code(path: Path, page: Callable[[], str]) -> None:
    assert path.read_text(encoding="utf-8") == page(), "write it again: python -m tests.reference"
