"""The structure of the code base: `python -m tests.structure` prints each problem as `path:line: text`.

`make check` runs it; the status is 1 if there is a problem. tests/structure/test_checks.py plants violations.
`lint-imports` checks the import contracts. Tests compare the pages of docs/reference with the code.
"""

import gc
import sys
from collections.abc import Callable, Iterator

from tests.structure import (
    addresses,
    class_names,
    documents,
    english,
    growth,
    message_fields,
    modules,
    raft_rules,
    soak_sizes,
    struct_defaults,
    waits,
    words,
)

CHECKS: tuple[Callable[[], Iterator[str]], ...] = (
    addresses.check,
    class_names.check,
    documents.check,
    english.check,
    growth.check,
    message_fields.check,
    modules.check,
    raft_rules.check,
    soak_sizes.check,
    struct_defaults.check,
    waits.check,
    words.check,
)


def main() -> int:
    """Print the problems; return the status of the process."""
    problems = [line for check in CHECKS for line in check()]
    sys.stdout.writelines(f"{line}\n" for line in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    # The syntax trees of all files are needed until the end; garbage collection would take a third of the time.
    gc.disable()
    sys.exit(main())
