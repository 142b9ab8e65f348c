"""Findings of watched processes. Findings listed with a reason in `exceptions.toml` are excluded.

An exception is a set of patterns for the kind of operation, the innermost function of the program and the object. It is
the only way to allow an operation in the event loop, so the file lists all deliberate ones.

Only commands that serve clients or supervise processes are checked. A command that sends one request to a node has its
own event loop with a single task, so its waits delay nothing else.
"""

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from json import loads
from pathlib import Path
from typing import Final

from tests.loop_watch.watch import ENVIRONMENT, Finding

EXCEPTIONS: Final = Path(__file__).with_name("exceptions.toml")
ROOT: Final = Path(__file__).parents[2]
SERVING: Final = ("run ", "up ", "top", "kraft serve ", "zmq-raft serve ")
"""The first words of the checked command lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedOperation:
    """Operations allowed in the loop, with the reason. A pattern is a `fnmatch` pattern; the default matches all."""

    reason: str
    kind: str = "*"
    where: str = "*"
    what: str = "*"
    command: str = "*"
    within: str = "*"
    """A function anywhere in the stack."""

    def allows(self, finding: Finding) -> bool:
        pairs = (
            (finding.kind, self.kind),
            (finding.where, self.where),
            (finding.what, self.what),
            (finding.command, self.command),
        )
        is_within = any(fnmatchcase(each, self.within) for each in (*finding.stack, ""))
        return is_within and all(fnmatchcase(value, pattern) for value, pattern in pairs)


def allowed_operations() -> tuple[AllowedOperation, ...]:
    return tuple(AllowedOperation(**each) for each in tomllib.loads(EXCEPTIONS.read_text())["exception"])


def findings_in(directory: Path) -> list[Finding]:
    """Return all findings of the processes that wrote into `directory`."""
    lines = [line for file in sorted(directory.glob("*.jsonl")) for line in file.read_bytes().splitlines()]
    return [Finding(**{**found, "stack": tuple(found["stack"])}) for found in map(loads, lines)]


def not_allowed(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings not allowed by any exception, one per place."""
    checked = (found for found in findings if found.command.startswith(SERVING))
    allowed = allowed_operations()
    places: dict[tuple[str, str, tuple[str, ...]], Finding] = {}
    for found in checked:
        if not any(each.allows(found) for each in allowed):
            places.setdefault((found.kind, found.where, found.stack[:3]), found)
    return [*places.values()]


def as_text(findings: Iterable[Finding]) -> str:
    """Return the findings as text: one line each, followed by its stack."""
    return "\n".join(
        "\n    ".join((f"{each.kind} {each.what}: {each.where} (task {each.task}; {each.command})", *each.stack[:9]))
        for each in findings
    )


def watched_environment(directory: Path) -> Mapping[str, str]:
    """Return environment variables that make a process write its findings into `directory`."""
    paths = (str(Path(__file__).with_name("injected")), str(ROOT), os.environ.get("PYTHONPATH", ""))
    return {ENVIRONMENT: str(directory), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@contextmanager
def watched_processes(directory: Path) -> Iterator[None]:
    """Watch the processes started within the block."""
    directory.mkdir(exist_ok=True)
    added = watched_environment(directory)
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
