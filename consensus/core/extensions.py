"""What two servers may say to each other beyond the words that every server of their protocol knows.

A wire protocol has a fixed vocabulary (`features`); servers of our own make agree on more when they connect. The core
is told what each handshake settled and keeps to it: an extension message never goes to a peer that lacks the word, and
what the extension would have done is done by slower means. A peer that no handshake has reached yet is unknown, and
each extension says what is assumed of it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Extensions:
    """What one peer understands; the default is a server that knows its protocol and nothing else."""

    pre_vote: bool = False
    """The question before a vote (`candidate`)."""
    transfer: bool = False
    """TimeoutNow, and the flag of a vote request that was caused by one (`transfer`)."""
    configurations: bool = False
    """Joint configurations, and learners in them (`configuration`)."""
    lease_ms: int | None = None
    """How long it refuses other candidates after a word of the leader, and after a restart; None: no promise."""


NO_EXTENSIONS = Extensions()
