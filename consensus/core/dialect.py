"""What each wire protocol permits, as a table, so that no protocol leaks into the core.

garlic-farm   replies in connection order, so any number of requests may be in flight; pre-vote and TimeoutNow are
              extensions that our own servers negotiate in the handshake (`PeerExtensions`); no no-op entry, so the
              leader of a new term appends its configuration again
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """One protocol's row of the table."""

    name: str
    pre_vote: bool
    """Whether servers may negotiate pre-vote at all."""
    transfer: bool
    """Whether servers may negotiate TimeoutNow; without it a leader abdicates and abstains (`transfer`)."""
    max_requests_in_flight: int
    """Appends that may wait for an answer on one connection; the tuning may ask for fewer."""


GARLIC_FARM = Dialect(name="garlic-farm", pre_vote=True, transfer=True, max_requests_in_flight=64)
