"""The reason of a failed connection.

Programs without TLS use this module and do not load the modules of certificates.
"""

import os
import ssl


def connection_failure(error: BaseException) -> str:
    """Return the operating system's text for a failed connection.

    trio raises a failed connection as a group of attempts, one for each address, and repeats the address in its text.
    """
    cause = error
    while True:
        inner = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__
        if isinstance(inner, ssl.SSLError) or not isinstance(inner, OSError | BaseExceptionGroup):
            break
        cause = inner
    if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) and cause.strerror:
        return os.strerror(cause.errno) if cause.errno is not None and cause.errno > 0 else cause.strerror
    return str(cause) or type(cause).__name__


def was_refused(error: BaseException) -> bool:
    """Return True if each attempt of a failed connection was refused: the machine runs, but no process listens."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(was_refused, error.exceptions))
    return isinstance(error, ConnectionRefusedError) or (error.__cause__ is not None and was_refused(error.__cause__))
