"""The list of the tests that run on compiled modules."""

import pytest

from tests.run_compiled import TESTS, files_of


def test_pattern_without_match_is_an_error() -> None:
    with pytest.raises(SystemExit, match=r"no file matches tests/spec/test_renamed\*\.py"):
        files_of((*TESTS, "tests/spec/test_renamed*.py"))


def test_patterns_match_files() -> None:
    assert len(files_of(TESTS)) >= len(TESTS)
