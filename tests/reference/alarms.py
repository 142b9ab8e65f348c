"""docs/reference/alarms.md out of alarms.toml, which says of each alarm what happened and what to do.

tests/structure/test_alarms.py compares its kinds with those that the code can raise.
"""

import tomllib
from pathlib import Path

HEAD = """# Alarms

`garlicfarm status` and `garlicfarm top` show each alarm with what to do; `/v1/events` tells when it was raised and
cleared. An alarm stands as long as its cause does; nothing has to be acknowledged.

| alarm | what happened | do |
|---|---|---|
"""
FOOT = """
A node that ends by itself writes the reason as the last line of its output. `the storage … is damaged` is explained in
[storage.md](storage.md); do not delete single files.
"""


def described() -> dict[str, tuple[str, str]]:
    """By kind: what happened, and what an operator does."""
    with Path(__file__).with_suffix(".toml").open("rb") as file:
        return {kind: (texts["happened"], texts["do"]) for kind, texts in tomllib.load(file).items()}


def page() -> str:
    """The document."""
    return HEAD + "".join(f"| `{kind}` | {happened} | {do} |\n" for kind, (happened, do) in described().items()) + FOOT
