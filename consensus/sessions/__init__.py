"""Exactly-once execution of clients' requests (Raft section 8).

The table of sessions is pure; the client, the state machine around the table and its clock need trio. What is named
here is fetched when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from consensus.sessions.client import ExactlyOnceClient, SessionExpiredError, Submission, Submitter
    from consensus.sessions.dedup_state_machine import OPENING_ENTRY, DedupStateMachine, clock_entry, request_entry
    from consensus.sessions.log_time_clock import SessionClock
    from consensus.sessions.request_numbers import RequestNumbers
    from consensus.sessions.table import (
        DEFAULT_LIMITS,
        RequestId,
        RequestStatus,
        SessionLimits,
        SessionTable,
        SessionTableError,
        parse_request_id,
    )

__all__ = [
    "DEFAULT_LIMITS",
    "OPENING_ENTRY",
    "DedupStateMachine",
    "ExactlyOnceClient",
    "RequestId",
    "RequestNumbers",
    "RequestStatus",
    "SessionClock",
    "SessionExpiredError",
    "SessionLimits",
    "SessionTable",
    "SessionTableError",
    "Submission",
    "Submitter",
    "clock_entry",
    "parse_request_id",
    "request_entry",
]

_HOMES: Final = {
    "consensus.sessions.client": ("ExactlyOnceClient", "SessionExpiredError", "Submission", "Submitter"),
    "consensus.sessions.dedup_state_machine": ("DedupStateMachine", "OPENING_ENTRY", "clock_entry", "request_entry"),
    "consensus.sessions.log_time_clock": ("SessionClock",),
    "consensus.sessions.request_numbers": ("RequestNumbers",),
    "consensus.sessions.table": (
        "DEFAULT_LIMITS",
        "RequestId",
        "RequestStatus",
        "SessionLimits",
        "SessionTable",
        "SessionTableError",
        "parse_request_id",
    ),
}

if not TYPE_CHECKING:  # mypy would take any name for one of the face

    def __getattr__(name: str) -> Any:
        """Fetch a public name from its home."""
        for home, names in _HOMES.items():
            if name in names:
                return getattr(import_module(home), name)
        raise AttributeError(f"module 'consensus.sessions' has no attribute {name!r}")
