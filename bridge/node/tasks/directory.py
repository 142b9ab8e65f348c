"""The directory of a node: a small I2P destination that returns the newest signed structures to clients.

    SAM bridge of the router ─▶ session with the directory's own key ─▶ accept ─▶ DirectoryRequests.serve, one task each
         └── lost, or not there: again after a growing delay, and the reason in the node's report and in `status`

A minute after the session begins, another session looks the directory up: i2pd 2.45.1 publishes no lease set for some
sessions. If the look-up fails, the session is replaced.

The signature of a structure proves its address, so clients need not trust the directory. The directory's key is for
this purpose only and is made at first use. Nothing in the directory or in its replies names the node, its farm or the
farm's other addresses.

The node's report contains the directory's hash, for `garlicfarm link` on every node. The directory is a convenience for
users, and the farm can publish without it. So a router without SAM does not raise an alarm.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

import trio

from bridge.api.events import DIRECTORY_FAILED, DIRECTORY_OPENED
from bridge.core.log.records import ReportedDirectory
from bridge.node.events.event_log import EventLog
from bridge.node.security.key_files import KeyFileError, read_private_file, write_private_file
from bridge.node.tasks.directory_requests import ALL_PER_SECOND, DirectoryRequest, DirectoryRequests
from bridge.sam.connection import LeafUnreachableError, SamBridge, SamError, SamUnreachableError, UnreadablePeerError
from bridge.sam.session import SamSession, new_private_key, open_session
from bridge.wire.i2p.destination_keys import DestinationKeyError
from bridge.wire.i2p.key_file import destination_of_sam_key
from bridge.wire.i2p.structure_exchange import StructureReply
from bridge.wire.i2p.structures import ADDRESS_SUFFIX, address_of
from consensus import block_nursery, run_task
from consensus.net import Backoff

KEY_FILE: Final = "directory.key"
KEY_LIMIT_BYTES: Final = 8_192
RETRY_FIRST_S: Final = 5.0
RETRY_LONGEST_S: Final = 60.0
ACCEPT_RETRY_S: Final = 1.0
ACCEPT_FAILURES_MAX: Final = 10
"""Failures in a row to accept a stream; the last one ends the session."""
CHECK_FIRST_S: Final = 60.0
"""Seconds from the start of a session to its look-up.

Each failed look-up in a row doubles this time, because the network may be the cause.
"""
CHECK_LONGEST_S: Final = 3_600.0
CHECK_TIMEOUT_S: Final = 45.0
"""i2pd needs up to 40 s to query all floodfills."""
CHECK_TRIES: Final = 2
NICKNAME: Final = "garlicfarm-directory"
OPENING: Final = "its session is being opened"


class Directory:
    """The session at the SAM bridge, and the exchanges of its streams."""

    def __init__(
        self, bridge: SamBridge, state_dir: Path, trace: EventLog, reply_for: Callable[[bytes], StructureReply]
    ) -> None:
        self._bridge = bridge
        self._key_path = state_dir / KEY_FILE
        self._trace = trace
        self._requests = DirectoryRequests(reply_for)
        self._check_delays = Backoff(CHECK_FIRST_S, CHECK_LONGEST_S, Random())
        self.status = ReportedDirectory(problem=OPENING)
        """The directory's hash, and the problem while the directory does not serve."""

    @property
    def counts(self) -> Counter[DirectoryRequest]:
        """The number of requests by result."""
        return self._requests.counts

    async def run(self) -> None:
        """Serve until canceled; open a new session when one ends."""
        backoff = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S, Random())
        while True:
            try:
                private_key = await self._private_key()
                # The number of tunnels is the router's default: with two, i2pd 2.45.1 did not always publish the lease
                # set.
                async with open_session(self._bridge, private_key=private_key, nickname=NICKNAME) as session:
                    backoff.reset()
                    await self._serve(session)
            except (SamError, KeyFileError, DestinationKeyError) as error:
                self._failed(str(error))
            await trio.sleep(backoff.next_s())

    async def _private_key(self) -> str:
        """Return the key of the directory, in SAM's base64; make one at first use."""
        if not await trio.Path(self._key_path).exists():
            private_key = await new_private_key(self._bridge)
            await trio.to_thread.run_sync(write_private_file, self._key_path, private_key)
        text = (await trio.to_thread.run_sync(read_private_file, self._key_path, KEY_LIMIT_BYTES)).strip()
        try:
            name = address_of(destination_of_sam_key(text).hash).removesuffix(ADDRESS_SUFFIX)
        except DestinationKeyError as error:
            raise KeyFileError(
                f"{self._key_path} is not a key of SAM: {error}; remove it, and the node makes another one. Users then"
                " need another link"
            ) from None
        self.status = ReportedDirectory(name, self.status.problem)
        return text

    async def _serve(self, session: SamSession) -> None:
        self.status = ReportedDirectory(self.status.destination_hash)
        self._trace.append(DIRECTORY_OPENED, {"directory": session.address})
        failures = 0
        async with block_nursery() as nursery:
            nursery.start_soon(self._check_lease_set, session)
            while True:
                try:
                    peer, stream = await session.accept()
                except SamUnreachableError:
                    raise
                except UnreadablePeerError:
                    # Any client can cause this error, so it is not a failure of the bridge.
                    await trio.sleep(1 / ALL_PER_SECOND)
                except SamError:
                    failures += 1
                    if failures >= ACCEPT_FAILURES_MAX:
                        raise
                    await trio.sleep(ACCEPT_RETRY_S)
                else:
                    failures = 0
                    nursery.start_soon(run_task, self._requests.serve, peer, stream)

    async def _check_lease_set(self, session: SamSession) -> None:
        """Raise `SamError` if another session does not find the directory."""
        await trio.sleep(self._check_delays.next_s())
        try:
            async with open_session(self._bridge, nickname=f"{NICKNAME}-check") as other:
                for _ in range(CHECK_TRIES):
                    with suppress(LeafUnreachableError):
                        await trio.aclose_forcefully(await other.connect(session.hash, CHECK_TIMEOUT_S))
                        self._check_delays.reset()
                        return
        except SamError:
            return  # The router does not make a session: the directory's own session shows the cause.
        raise SamError("the network does not find its lease set: the router has not published it")

    def _failed(self, reason: str) -> None:
        if self.status.problem != reason:
            self._trace.append(DIRECTORY_FAILED, {"reason": reason})
        self.status = ReportedDirectory(self.status.destination_hash, reason)
