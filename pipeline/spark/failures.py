"""Failure reports of Spark for operators: the cause from a page of frames, and the remedy.

A failure passes from a Python process through the JVM and back, and each of them adds text. The farm's own message, if
any, is in the middle. Then only this message is shown, because it has the remedy. Otherwise the last line of a Python
traceback is shown, or else Spark's own first line and its last cause. A query of Spark has its causes in a chain.
"""

import re
from collections.abc import Iterator
from typing import Any

from pipeline.source.kafka import REFUSALS

_OWN = re.compile(r"(?:FarmLogError|FarmSilentError|TableDamagedError|BucketError): (.*)")
_LOST_STARTS = (
    "Python worker failed to connect back",
    "Timed out while waiting for the Python worker to connect back",
)
_NO_SPACE = re.compile(r"No space left on device|disk is full|Disk quota exceeded", re.IGNORECASE)
_FREE_SPACE = (
    "free some space for --output and for the temporary directory (TMPDIR), then run the same command again: it"
    " continues from there"
)
_NO_RIGHT = re.compile(
    r"Read-only file system|Permission denied|readonly database|unable to open database", re.IGNORECASE
)
_GIVE_RIGHT = "let this user write --output and its content, or choose another --output"
_NO_DIRECTORY = re.compile(r"Not a directory|File exists")
_OTHER_PLACE = "a file has the name of --output, or of a directory above it: choose another --output"
_NO_MEMORY = re.compile(r"OutOfMemoryError|Java heap space|GC overhead limit")
_GIVE_MEMORY = "name fewer --entries-per-batch"
_ADVICE = (
    (_NO_SPACE, _FREE_SPACE),
    (_NO_RIGHT, _GIVE_RIGHT),
    (_NO_DIRECTORY, _OTHER_PLACE),
    (_NO_MEMORY, _GIVE_MEMORY),
)
_KAFKA = "org.apache.kafka."
_DECORATION = re.compile(r"\x1b\[[\d;]*m|\u21b3 *")
"""Colors and arrows in the texts of delta-rs."""
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning): .+")
_CAUSED = "Caused by: "
_CALL = "An error occurred while calling"
_TRACEBACK = "Traceback (most recent call last):"
LINE_LIMIT = 400


def is_lost_start(text: str) -> bool:
    """Return True if a new Python process did not connect in time: another attempt may succeed."""
    return any(words in text for words in _LOST_STARTS)


def reason_of(failure: Exception | str) -> str:
    """Return the part of a failure report for an operator."""
    lines = _DECORATION.sub("", f"\n{_CAUSED}".join(_reports(failure))).strip().splitlines() or ["no reason was given"]
    own = [found[1].strip() for found in map(_OWN.search, lines) if found is not None]
    if own:
        return own[-1]
    cause = _cause(lines)
    of_kafka = REFUSALS if any(_KAFKA in line for line in lines) else ()
    for pattern, advice in (*_ADVICE, *of_kafka):
        # If advice is known, the line that it refers to is more useful than the first line.
        if pattern.search("\n".join(lines)) and (found := [each.strip() for each in lines if pattern.search(each)]):
            shown = cause if pattern.search(cause) else found[0].removeprefix(_CAUSED)[:LINE_LIMIT]
            return f"{shown}; {advice}"
    return cause


def _reports(failure: Any) -> Iterator[str]:
    while failure is not None:
        yield str(failure)
        failure = getattr(failure, "_cause", None)  # PySpark's attribute


def _cause(lines: list[str]) -> str:
    """Return the line of the last traceback that names the exception; otherwise the first line and the last cause."""
    last_traceback = max((number for number, line in enumerate(lines) if _TRACEBACK in line), default=None)
    if last_traceback is not None:
        exception = next((line.strip() for line in lines[last_traceback + 1 :] if _EXCEPTION.match(line.strip())), None)
        if exception is not None:
            return exception[:LINE_LIMIT]
    # The bridge to the JVM first names the call; the JVM's own text follows.
    behind_call = lines[0].startswith(_CALL) and lines[1:] and lines[1].startswith(": ")
    first = (lines[1].removeprefix(": ") if behind_call else lines[0]).strip()[:LINE_LIMIT]
    last = next((line.removeprefix(_CAUSED)[:LINE_LIMIT] for line in reversed(lines) if line.startswith(_CAUSED)), "")
    if first.startswith(_CALL):
        return last or first
    return first if (last.partition(": ")[2] or last) in first else f"{first}; caused by {last}"
