"""The examples in docs/reference/gossip-library.md run as they stand, are short, and print what stands below them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "gossip-library.md"
EXAMPLES = re.findall(r"```python\n(.*?)```\s+```text\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


def test_there_is_one_example_for_the_group_and_one_for_the_core_alone() -> None:
    assert ["gossip.open_group" in code for code, _ in EXAMPLES] == [True, False]
    assert ["Swim(" in code for code, _ in EXAMPLES] == [False, True]


@pytest.mark.parametrize(("code", "printed"), EXAMPLES, ids=["group", "core"])
def test_an_example_is_shorter_than_twenty_lines(code: str, printed: str) -> None:
    assert printed
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) < 20


@pytest.mark.parametrize(("code", "printed"), EXAMPLES, ids=["group", "core"])
def test_an_example_prints_what_the_document_says(code: str, printed: str) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.stdout, result.stderr) == (printed, "")
