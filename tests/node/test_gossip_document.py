"""The examples in docs/reference/gossip-library.md run unchanged, are short, and print the documented output."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "gossip-library.md"
EXAMPLES = re.findall(r"```python\n(.*?)```\s+```text\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


def test_document_has_example_of_group_then_of_core() -> None:
    assert ["gossip.open_group" in code for code, _ in EXAMPLES] == [True, False]
    assert ["Swim(" in code for code, _ in EXAMPLES] == [False, True]


@pytest.mark.parametrize(("code", "printed"), EXAMPLES, ids=["group", "core"])
def test_example_is_shorter_than_twenty_lines(code: str, printed: str) -> None:
    assert printed
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) < 20


@pytest.mark.parametrize(("code", "printed"), EXAMPLES, ids=["group", "core"])
def test_example_prints_documented_output(code: str, printed: str) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.stdout, result.stderr) == (printed, "")
