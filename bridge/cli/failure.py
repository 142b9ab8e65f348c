"""The end of a refused or failed command: the reason on stderr, and exit code 1.

Exit codes of every command: 0 done; 1 refused or failed, with the reason; 2 wrong usage (click's own); 130 interrupted.
`status` has two more, for the verdict (`bridge.api.verdict`). `log verify` also uses 2 for a path without a log.
"""

import errno
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import click

from bridge.api.printable import printable
from bridge.cli.printing import ask_yes_or_no, echo
from consensus.storage import access_advice

REFUSED = 1
INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells report it for a program that SIGINT ended."""
_NUMBERED = re.compile(r"\[Errno \d+\] ([\w ,]+)(?:: '([^']*)')?")
"""The text of an OSError in the text of another error: `[Errno 13] Permission denied: '/path'`."""
_OTHER_FILE = "; name another file"
_OTHER_PLACE = ": run the command as a user with this right, or name another path"
_ABOUT_FILES = {
    errno.EACCES: _OTHER_PLACE,
    errno.EPERM: _OTHER_PLACE,
    errno.ENOTDIR: ": a file has the name of a directory in this path; move it, or name another path",
    errno.EEXIST: ": name another place, or remove it",
    errno.ENOSPC: ": free some space",
    errno.EIO: ": the disk fails; look for its faults in the log of the system, and replace it if it fails again",
}
"""The remedy, by the operating system's number of the failure."""


def fail(reason: str) -> NoReturn:
    """End with exit code 1 and the reason."""
    for line in failure_lines(reason):
        echo(line, err=True)
    sys.exit(REFUSED)


def failure_lines(reason: str) -> list[str]:
    """Return the printable lines with the reason of a failure; errors of the operating system lose their numbers."""
    plain = _NUMBERED.sub(lambda found: f"{found[2]}: {found[1]}" if found[2] else found[1], reason)
    first, *more = plain.split("\n")
    return [printable(f"garlicfarm: {first}"), *(printable(f"  {line}") for line in more)]


def confirm(question: str, *, yes: bool, default: bool = False) -> None:
    """Continue only if the user agrees, with --yes or at the prompt; without a user, end with the remedy."""
    if yes:
        return
    try:
        agreed = ask_yes_or_no(question, default=default)
    except click.Abort:
        echo(err=True)
        fail("nothing was done, because the prompt was not answered; with --yes the command does not prompt")
    if not agreed:
        fail("nothing was done")


def reasons(group: BaseExceptionGroup[BaseException]) -> Iterator[str]:
    """Yield the text of each exception in a group, in order: tasks that fail together have separate reasons."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from reasons(error)
        else:
            yield reason_of(error)


def fail_to_read(file: str | Path, error: OSError | UnicodeDecodeError) -> NoReturn:
    """End with exit code 1, and the reason and remedy for an unreadable file that the user named."""
    if isinstance(error, OSError):
        fail(f"{file} cannot be read: {error.strerror or error}{access_advice(Path(file), error) or _OTHER_FILE}")
    fail(f"{file} cannot be read: {error}; write it in UTF-8")


@contextmanager
def needs_extra(packages: Collection[str], instruction: str) -> Iterator[None]:
    """End the command with an instruction if an import in the block lacks one of the packages."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] in packages:
            fail(instruction)
        raise


def reason_of(error: BaseException) -> str:
    """Return the text of an exception; for an error of the operating system, the file and the fault without number."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        name = os.fsdecode(error.filename)
        hint = _ABOUT_FILES.get(error.errno or 0) or access_advice(Path(name), error)
        return f"{name}: {error.strerror or error}{hint}"
    if is_about_working_directory(error):
        return "the working directory was removed: change to another directory"
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def is_about_working_directory(error: BaseException) -> bool:
    """Return True if a relative path failed because the working directory was removed."""
    if not isinstance(error, FileNotFoundError) or error.filename is not None:
        return False
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


@contextmanager
def interruptible(state: Callable[[], str] = str) -> Iterator[None]:
    """End the command with exit code 130 on Ctrl-C, also in a task, and on Ctrl-D at a prompt; report its state."""
    try:
        yield
    except (KeyboardInterrupt, click.Abort):
        pass
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is None:
            raise
    else:
        return
    if text := state():
        echo(err=True)
        echo(f"Interrupted: {text}", err=True)
    sys.exit(INTERRUPTED)


@contextmanager
def failures(*kinds: type[Exception]) -> Iterator[None]:
    """End the command with the texts of exceptions of these kinds, also from tasks; raise other exceptions."""
    ends: list[str] = []
    try:
        yield
    except* kinds as group:
        ends.extend(reasons(group))
    if ends:
        fail("; ".join(dict.fromkeys(ends)))
