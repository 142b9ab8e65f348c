"""Calls from a turn of the server to functions of other parts: observers, replies to callers, the transport.

    turn ──▶ core.step ──▶ effects ──▶ run_callback(on_reply, answer)        the turn continues after any exception

The core has completed its step when such a function runs, so an error of the function does not contradict the stored
state. Without this boundary the error would end the turn and the server: one reply that cannot be encoded would stop a
voter. The error is a fault of the program, and is logged with its traceback.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

LOG = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
_FAULT = "a fault of the program: %s raised an error; the server continues"


def run_callback(callback: Callable[P, object], *arguments: P.args, **options: P.kwargs) -> None:
    """Call a function of another part; an error in it is logged and not raised again."""
    try:
        callback(*arguments, **options)
    except Exception as error:  # noqa: BLE001 - logged
        log_failure(callback, error)


async def run_task(task: Callable[P, Awaitable[T]], *arguments: P.args, **options: P.kwargs) -> T | None:
    """Run a task and return its result; an error in it is logged, does not end the process, and returns None.

    A cancellation is raised, even if it is in one group with an error.
    """
    try:
        return await task(*arguments, **options)
    except* Exception as errors:  # noqa: BLE001 - logged
        log_failure(task, errors)
    return None


def log_failure(called: object, error: Exception) -> None:
    """Log an error raised by this function.

    Code that runs for each message calls this in its own exception handler: `run_callback` would cost one more call.
    """
    LOG.error(_FAULT, getattr(called, "__qualname__", type(called).__name__), exc_info=error)
