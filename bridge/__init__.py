"""The farm: where gossip and consensus meet, and what is published out of what they agreed.

Three floors, and imports point only one way: `core` (pure decisions) <- `wire` (structures as bytes) <- `node` (trio);
above them `tui` and `cli`, the operator's surfaces.
"""

from importlib import metadata

DISTRIBUTION = "garlicfarm"


def version() -> str:
    """The version that is installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"
