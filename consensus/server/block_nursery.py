"""The nursery of an `async with` block of the public API. Its tasks end with the block, which raises single errors.

    async with open_server(…) as server:        a failed disk ends the block with OSError, not with
        …                                       ExceptionGroup(ExceptionGroup(OSError))

docs/explanation/architecture.md ("Errors of tasks") has the reason. Such blocks open their nursery by `block_nursery`;
a function with its own nursery can use `single_errors`.

If several tasks fail, the first error is raised and has the others as notes. An interrupt takes precedence over errors.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio


@asynccontextmanager
async def block_nursery() -> AsyncIterator[trio.Nursery]:
    """Open a nursery, and cancel it at the end of the block. Raise the error of a task or of the block unwrapped."""
    with single_errors():
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            finally:
                nursery.cancel_scope.cancel()


@contextmanager
def single_errors() -> Iterator[None]:
    """Raise one error instead of a group that leaves the block: an interrupt, else the first error."""
    ended: BaseExceptionGroup[BaseException] | None = None
    try:
        yield
    except BaseExceptionGroup as group:
        ended = group
    if ended is not None:
        # Raised outside of the handler, so that the group does not become the context of the error.
        raise _single(ended)


def _single(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that represents a group: an interrupt, else the first error, with the others as notes.

    A group of cancellations alone is returned unchanged.
    """
    errors = [error for error in leaves(group) if not isinstance(error, trio.Cancelled)]
    if not errors:
        return group
    first = next((error for error in errors if not isinstance(error, Exception)), errors[0])
    for error in dict.fromkeys(errors):
        if error is not first:
            first.add_note(f"another task failed: {type(error).__name__}: {error}")
    return first


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Yield the exceptions in a group and in the groups within it, in order."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error
