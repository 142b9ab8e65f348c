"""A node of a farm: it connects gossip and consensus, and publishes the agreed Meta LeaseSet2.

Imports point only one way: `core` <- `wire` <- `api` <- `sam` <- `node` and `connect` <- `tui` <- `cli`. `core` has
pure decisions, `wire` structures as bytes, `api` JSON; `sam`, `node` and `connect` use trio.
"""

from pathlib import Path

VERSION = "0.1.0"
"""Version of the distribution; pyproject.toml reads it here."""
DOCUMENTS = (Path(__file__).parent / "docs", Path(__file__).parents[1] / "docs")
"""The places of docs/: inside the package, and in a checkout."""


def document(name: str) -> str | None:
    """Return the text of a document by its path below docs/; None if this installation lacks it."""
    found = (directory / name for directory in DOCUMENTS)
    return next((path.read_text(encoding="utf-8") for path in found if path.is_file()), None)
