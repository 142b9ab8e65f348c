"""The last known addresses of the other servers, in a file.

    gossip's members ──▶ MemberDirectory ──▶ LastAddresses.address_of ──▶ Raft's connections
                                                   │        ▲
                                             addresses.json ┘ for a server that gossip has not found in this run

Only gossip knows the addresses of servers. If UDP is blocked, running servers stay connected by TCP. But after a power
failure of all of them gossip would fail, and the servers could not elect a leader.

An address is only tried, and the connection proves the server's identity. So a wrong address costs an attempt, and an
unreadable file is ignored. A failed write is repeated; other alarms report the disk.
"""

from collections.abc import Callable, Collection
from math import inf
from pathlib import Path
from typing import Annotated, Final

import msgspec
import trio

from bridge.node.membership.member_directory import MemberDirectory
from consensus.protocols.garlic_farm import PeerAddress
from consensus.storage import replace_file

FILE_NAME = "addresses.json"
FILE_LIMIT_BYTES = 256 * 1024
RETRY_S: Final = 10.0
"""Longest time from a failed write until the next one."""


class StoredAddress(msgspec.Struct, frozen=True):
    """The fields of a `PeerAddress` in `addresses.json`, with their limits."""

    host: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    port: Annotated[int, msgspec.Meta(ge=1, le=0xFFFF)]
    fingerprint: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)] | None


_File = dict[Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}\\Z")], StoredAddress]


class LastAddresses:
    """The file and its content, together with the addresses from gossip."""

    def __init__(self, state_dir: Path, member_directory: MemberDirectory) -> None:
        self._path = state_dir / FILE_NAME
        self._member_directory = member_directory
        self._stored = _read(self._path)

    def address_of(self, node_id: bytes) -> PeerAddress | None:
        """Return the address of a node's Raft server from gossip, or else from the file."""
        return self._member_directory.address_of(node_id) or self._stored.get(node_id)

    async def follow(self, servers: Callable[[], Collection[bytes]]) -> None:
        """Store the addresses of the identities that `servers` returns, until canceled."""
        while True:
            present = {each: address for each in servers() if (address := self.address_of(each)) is not None}
            wait_s = inf
            if present != self._stored:
                content = msgspec.json.encode({node_id.hex(): each for node_id, each in sorted(present.items())})
                try:
                    await trio.to_thread.run_sync(replace_file, self._path, content)
                except OSError:
                    wait_s = RETRY_S
                else:
                    self._stored = present
                    continue  # There may have been changes during the write.
            with trio.move_on_after(wait_s):
                await self._member_directory.news()


def _read(path: Path) -> dict[bytes, PeerAddress]:
    try:
        with path.open("rb") as file:
            found = msgspec.json.decode(file.read(FILE_LIMIT_BYTES), type=_File)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    return {
        bytes.fromhex(node_id): PeerAddress(each.host, each.port, each.fingerprint) for node_id, each in found.items()
    }
