"""The errors of the client. Each text names the failure and the remedy for the user.

They are apart from the sessions, so that listeners can catch an error without them.
"""

import trio


class ConnectError(Exception):
    """The client cannot do what was requested; nothing was sent twice."""


class NoSessionError(ConnectError):
    """The SAM bridge is unreachable, or its router does not make a session."""


class NoLeafError(ConnectError):
    """No usable structure is available, or no leaf replied."""


class StreamLimitError(ConnectError):
    """The client has as many open streams as it allows."""


class LeafSilentError(ConnectError, trio.BrokenResourceError):
    """A leaf received bytes and did not reply in time. They were not sent to another leaf."""
