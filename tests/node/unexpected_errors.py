"""An unexpected error in the program: the first calls of a function fail."""

from typing import Any

import pytest


def fail_first(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, times: int = 1) -> None:
    """Replace a function, so that its first calls raise an error that no caller expects."""
    work = getattr(owner, name)
    failures = iter(range(times))

    def fail_at_first(*arguments: Any, **options: Any) -> Any:
        if next(failures, None) is not None:
            raise LookupError("unexpected")
        return work(*arguments, **options)

    monkeypatch.setattr(owner, name, fail_at_first)


def tracebacks(caplog: pytest.LogCaptureFixture) -> int:
    """Return the number of logged tracebacks."""
    return sum(record.exc_info is not None for record in caplog.records)
