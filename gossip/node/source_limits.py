"""How often one source address, and all together, may make this node do something for strangers."""

from dataclasses import dataclass, field
from typing import Final

from gossip.node.rate_limit import Bucket, SourceLimit

NEWCOMERS_PER_SECOND: Final = 20.0
NEWCOMERS_BURST: Final = 100.0
NEWCOMERS_OF_ALL_PER_SECOND: Final = 200.0
ERRORS_PER_SECOND: Final = 20.0
ERRORS_BURST: Final = 100.0
ERRORS_OF_ALL_PER_SECOND: Final = 200.0
KEY_REPAIRS_PER_SECOND: Final = 2.0
KEY_REPAIRS_BURST: Final = 4.0
KEY_REPAIRS_OF_ALL_PER_SECOND: Final = 20.0
REFUSED_KEYS_TOLD_PER_SECOND: Final = 1 / 30
REFUSED_KEYS_TOLD_BURST: Final = 1.0
"""Once and then twice a minute: the counter has them all."""


@dataclass(slots=True)
class SourceLimits:
    """The limits of one agent: joins and broadcasts heard, refusals sent, keyrings told to those behind."""

    newcomers: SourceLimit = field(
        default_factory=lambda: SourceLimit(NEWCOMERS_PER_SECOND, NEWCOMERS_BURST, NEWCOMERS_OF_ALL_PER_SECOND)
    )
    errors: SourceLimit = field(
        default_factory=lambda: SourceLimit(ERRORS_PER_SECOND, ERRORS_BURST, ERRORS_OF_ALL_PER_SECOND)
    )
    boxes: SourceLimit = field(
        default_factory=lambda: SourceLimit(KEY_REPAIRS_PER_SECOND, KEY_REPAIRS_BURST, KEY_REPAIRS_OF_ALL_PER_SECOND)
    )
    """Boxes opened: each takes an exchange of keys, and strangers can send what looks like one."""
    refused_keys: Bucket = field(default_factory=lambda: Bucket(REFUSED_KEYS_TOLD_PER_SECOND, REFUSED_KEYS_TOLD_BURST))
    """Keyring updates of strangers told to the application."""
    key_repairs: SourceLimit = field(
        default_factory=lambda: SourceLimit(KEY_REPAIRS_PER_SECOND, KEY_REPAIRS_BURST, KEY_REPAIRS_OF_ALL_PER_SECOND)
    )
