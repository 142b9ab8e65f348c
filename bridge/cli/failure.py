"""How a command ends when it was refused or failed: the reason as one line on stderr, and exit code 1.

Exit codes of every command: 0 done; 1 refused or failed, with the reason; 2 wrong usage (click's own).
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

REFUSED = 1


def fail(reason: str) -> NoReturn:
    """End with exit code 1 and the reason."""
    click.echo(f"garlicfarm: {reason}", err=True)
    sys.exit(REFUSED)


def reasons(group: BaseExceptionGroup[BaseException]) -> Iterator[str]:
    """The text of each exception in a group, in order: tasks that fail together have each a reason."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from reasons(error)
        else:
            yield str(error) or type(error).__name__


@contextmanager
def failures(*kinds: type[Exception]) -> Iterator[None]:
    """Exceptions of these kinds are reasons for people; anything else is a bug and shows itself as one."""
    try:
        yield
    except kinds as error:
        fail(str(error))
