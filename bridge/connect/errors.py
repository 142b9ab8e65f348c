"""The errors of the client. Each text names the failure and the remedy for the user.

This module does not import the sessions, so that listeners can catch an error without loading them.
"""

import trio


class ConnectError(Exception):
    """The client cannot complete a request. It did not send any byte twice."""


class NoSessionError(ConnectError):
    """The SAM bridge is unreachable, or its router does not make a session."""


class NoLeafError(ConnectError):
    """No usable structure is available, or no leaf replied."""


class StreamLimitError(ConnectError):
    """The client has as many open streams as it allows."""


class LeafSilentError(ConnectError, trio.BrokenResourceError):
    """A leaf received bytes and did not reply in time. The client did not send them to another leaf."""
