"""Spare signing keys on this node, for the nodes that it invites; made by `garlicfarm keys master`.

    spare-keys/NUMBER.key          free
    spare-keys/NUMBER.key.NODE-ID  assigned to that identity; removed when no invitation of this node is active

Before a key leaves this node, its file is renamed. So two nodes never get the same key, even if this node stops before
it has sent the reply. An unreadable file is ignored. A new node without a key does not publish.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from bridge.node.security.key_files import KeyFileError, load_signing_key, save_signing_keys
from bridge.wire.i2p.destination_keys import SigningKey, signing_key_text
from consensus.storage import sync_directory

DIRECTORY: Final = "spare-keys"
KEYS_MAX: Final = 64
_FREE: Final = re.compile(r"[0-9]{1,6}\.key")
_NUMBERED: Final = re.compile(r"([0-9]{1,6})\.key")


class SpareKeys:
    """The directory of one node."""

    def __init__(self, state_dir: Path) -> None:
        self.directory = state_dir / DIRECTORY

    def add(self, keys: Iterable[SigningKey]) -> list[Path]:
        """Store keys under the next numbers, all of them or none. Raise KeyFileError and OSError."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        numbers = [int(found[1]) for each in self.directory.iterdir() if (found := _NUMBERED.match(each.name))]
        first = max(numbers, default=0) + 1
        made = {self.directory / f"{number}.key": key for number, key in enumerate(keys, first)}
        if len(self.free()) + len(made) > KEYS_MAX:
            raise KeyFileError(f"{self.directory} would have more than {KEYS_MAX} spare keys: remove old ones")
        save_signing_keys(made)
        return list(made)

    def free(self) -> list[Path]:
        """Return the files of keys that no node has, the oldest first."""
        try:
            found = [each for each in self.directory.iterdir() if _FREE.fullmatch(each.name)]
        except OSError:
            return []
        return sorted(found, key=lambda path: int(path.stem))

    def count(self, master: str) -> int:
        """Return the number of free keys of a master (in base64)."""
        return sum(key.destination.base64 == master for _, key in self._loaded(self.free()))

    def masters(self) -> tuple[str, ...]:
        """Return each master with a key here (in base64), also if a node has the key already."""
        return tuple({key.destination.base64: None for _, key in self._loaded(self.directory.glob("*.key*"))})

    def assign(self, node_id: bytes, masters: Collection[str]) -> tuple[str, ...]:
        """Assign a key of each master (in base64) to an identity; return their texts. Raise OSError.

        A repetition returns the same keys. A master without a free key is left out.
        """
        suffix = f".{node_id.hex()}"
        assigned = {key.destination.base64: key for _, key in self._loaded(self.directory.glob(f"*{suffix}"))}
        for path, key in self._loaded(self.free()):
            master = key.destination.base64
            if master in masters and master not in assigned:
                path.rename(path.with_name(path.name + suffix))
                assigned[master] = key
        if assigned:
            sync_directory(self.directory)
        return tuple(signing_key_text(key) for master, key in assigned.items() if master in masters)

    def forget_assigned(self) -> None:
        """Remove the copies of assigned keys, so that no second node can get one of them."""
        with suppress(OSError):
            for path in self.directory.glob("*.key.*"):
                path.unlink(missing_ok=True)

    def _loaded(self, paths: Iterable[Path]) -> Iterator[tuple[Path, SigningKey]]:
        for path in paths:
            with suppress(KeyFileError):
                yield path, load_signing_key(path)
