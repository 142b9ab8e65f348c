"""Queries of a client for the newest structure (the signed list of leaves), to the directories that its link names.

    random order, two at a time ─▶ a newer structure, or two known ones ─▶ end of the search

If a directory has not replied after 5 s, the client also queries the next one. The structure is signed, so a directory
need not be trusted. But it could return an old structure, send too many bytes, or send slowly. So each reply has a
limit in time and in bytes, and the client refuses a structure older than its last one.
"""

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from random import Random
from typing import Final

import trio
from msgspec import Struct

from bridge.api.printable import short_address
from bridge.connect.status import DirectoryStatus
from bridge.sam.connection import SamError, SamUnreachableError
from bridge.sam.session import SamSession
from bridge.wire.i2p.structure_exchange import (
    REPLY_LIMIT_BYTES,
    ExchangeError,
    ReplyStatus,
    decode_reply,
    encode_request,
    reply_bytes_missing,
)
from bridge.wire.i2p.structures import address_of

QUERY_TIMEOUT_S: Final = 20.0
AT_A_TIME: Final = 2
OVERDUE_AFTER_S: Final = 5.0
"""Seconds until a directory without a reply no longer counts for `AT_A_TIME`."""
ENOUGH_EQUAL: Final = 2
"""A search ends after this many replies with a structure that the client already has."""
SHOWN_FAILURES: Final = 3
_READ_BYTES: Final = 4_096
_STATUS_TEXTS: Final = {
    ReplyStatus.UNKNOWN_ADDRESS: "it does not serve this address: get a new link from the operator",
    ReplyStatus.NOTHING_PUBLISHED: "the farm has not published a structure yet",
    ReplyStatus.TOO_MANY_REQUESTS: "it received too many requests, and the client tries again later",
}


class DirectoryError(Exception):
    """A directory did not return a usable structure; the text is the reason."""


class Judgment(Enum):
    """Comparison of a returned structure with the structure that the client has."""

    NEWER = "newer"
    KNOWN = "known"


class _Directory(Struct):
    hash: bytes
    replies: int = 0
    failures: int = 0
    last_failure: str | None = None


class Directories:
    """The directories that a link names, with the outcomes of the queries."""

    def __init__(self, hashes: Sequence[bytes], address_hash: bytes, random: Random) -> None:
        self._directories = [_Directory(each) for each in hashes]
        self._address_hash = address_hash
        self._random = random

    def status(self) -> tuple[DirectoryStatus, ...]:
        """Return the state of each directory, in the order of the link."""
        return tuple(
            DirectoryStatus(
                address=address_of(each.hash),
                replies=each.replies,
                failures=each.failures,
                last_failure=each.last_failure,
            )
            for each in self._directories
        )

    def failures(self) -> str:
        """Return the last failure of each directory with the beginning of its address, at most `SHOWN_FAILURES`."""
        texts = [
            f"{short_address(address_of(each.hash))}: {each.last_failure}"
            for each in self._directories
            if each.last_failure
        ]
        more = f"; and {len(texts) - SHOWN_FAILURES} more" if len(texts) > SHOWN_FAILURES else ""
        return "; ".join(texts[:SHOWN_FAILURES]) + more

    async def query(self, session: SamSession, judge: Callable[[bytes], Awaitable[Judgment]]) -> bool:
        """Query directories until one returns a newer structure or two return a known one.

        Return True if a directory returned a usable structure. `judge` raises `DirectoryError` for a structure that it
        refuses. Raise `SamUnreachableError` if the session ends before a directory has returned a usable structure.
        """
        usable = 0
        session_error: SamUnreachableError | None = None
        finished = trio.Event()

        async def query_one(directory: _Directory, scope: trio.CancelScope) -> None:
            nonlocal usable, session_error
            try:
                judgment = await judge(await self._structure_of(directory, session))
            except DirectoryError as error:
                directory.failures += 1
                directory.last_failure = str(error)
            except SamUnreachableError as error:
                session_error = error
                scope.cancel()
            else:
                directory.replies += 1
                usable += 1
                if judgment is Judgment.NEWER or usable >= ENOUGH_EQUAL:
                    scope.cancel()
            finished.set()

        async with trio.open_nursery() as nursery:
            for number, directory in enumerate(self._random.sample(self._directories, len(self._directories))):
                if number >= AT_A_TIME:
                    with trio.move_on_after(OVERDUE_AFTER_S):
                        await finished.wait()
                    finished = trio.Event()
                nursery.start_soon(query_one, directory, nursery.cancel_scope)
        if session_error is not None and not usable:
            raise session_error
        return bool(usable)

    async def _structure_of(self, directory: _Directory, session: SamSession) -> bytes:
        with trio.move_on_after(QUERY_TIMEOUT_S):
            try:
                async with await session.connect(directory.hash, QUERY_TIMEOUT_S) as stream:
                    await stream.send_all(encode_request(self._address_hash))
                    reply = decode_reply(await _received(stream))
            except SamUnreachableError:
                raise
            except SamError as error:
                raise DirectoryError(str(error)) from None
            except ExchangeError as error:
                raise DirectoryError(f"its reply is not valid: {error}") from None
            except trio.BrokenResourceError:
                raise DirectoryError("the stream broke before its reply") from None
            if reply.status is not ReplyStatus.STRUCTURE:
                raise DirectoryError(_STATUS_TEXTS[reply.status])
            return reply.structure
        raise DirectoryError(f"it did not reply completely within {QUERY_TIMEOUT_S:g} s")


async def _received(stream: trio.abc.ReceiveStream) -> bytes:
    """Return the bytes of one reply; stop reading after `REPLY_LIMIT_BYTES`."""
    received = b""
    while missing := reply_bytes_missing(received):
        part = await stream.receive_some(min(missing, _READ_BYTES))
        received += part
        if not part or len(received) > REPLY_LIMIT_BYTES:
            break
    return received
