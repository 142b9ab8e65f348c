"""`make soak` selects each file of tests that has a larger size for it.

The size depends on `IS_SOAK`, and the selection on the mark `search` or `soak`. Without a mark the larger size never
runs.
"""

import re
from collections.abc import Iterator

from tests.structure.sources import modules_in, problem, text_of

SELECTS = re.compile(r"\bmark\.(search|soak)\b|\b(over_seeds|few_of|GROUP_SEEDS)\b")


def is_never_large(text: str) -> bool:
    """Return True if a file of tests has a size for `make soak`, which does not select any of its tests."""
    return "IS_SOAK" in text and not SELECTS.search(text)


def check() -> Iterator[str]:
    for path in modules_in("tests"):
        if path.name.startswith("test_") and is_never_large(text_of(path)):
            yield problem(path, 1, "IS_SOAK needs the mark `search` or `soak`, or `make soak` does not run this file")
