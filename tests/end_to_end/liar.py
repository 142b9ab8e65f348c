"""A gossip member with a copied farm key, its own identity, and metadata from a test.

    python -m tests.end_to_end.liar KEY_FILE METADATA(hex) SEED…

The process ends when its standard input is closed. `Liar` starts and ends it for a test.
"""

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import trio

import gossip
from bridge.core.formation.founding import FormationNotice
from bridge.core.formation.member import NodeMetadata, RoleHint
from bridge.node.security.key_files import load_farm_key
from bridge.wire.membership.metadata import encode_metadata
from gossip import Address, SwimOptions
from tests.processes import END_S

LOOPBACK = "127.0.0.1"


class Liar:
    """A context manager for the process. `seeds` are gossip addresses of the attacked farm."""

    def __init__(
        self, key_file: Path, seeds: list[str], notice: FormationNotice, admissions: tuple[tuple[bytes, int], ...] = ()
    ) -> None:
        metadata = NodeMetadata("farm", "liar", RoleHint.ELIGIBLE, notice=notice, admissions=admissions)
        self._command = [
            sys.executable,
            "-m",
            "tests.end_to_end.liar",
            str(key_file),
            encode_metadata(metadata).hex(),
            *seeds,
        ]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_S)


async def lie(key_file: Path, metadata: bytes, seeds: list[str]) -> None:
    """Be a member of the group until standard input ends."""
    opened = gossip.open_group(
        Address(LOOPBACK, 0),
        key=load_farm_key(key_file).key_ring,
        seeds=tuple(seeds),
        metadata=metadata,
        options=SwimOptions.loopback(),
    )
    async with opened, trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as pipe:
        while await pipe.receive_some(64):
            pass


if __name__ == "__main__":
    trio.run(lie, Path(sys.argv[1]), bytes.fromhex(sys.argv[2]), sys.argv[3:])
