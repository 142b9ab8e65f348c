"""Takes the fields of an I2P structure off the front of untrusted bytes.

Each field has a name, so that the error for missing bytes says where. Nothing is copied before it is known to be there.
The only error is `I2pError`, which a decoder turns into its own.
"""

from bridge.wire.i2p.structures import Destination, I2pError, read_destination, read_mapping


class FieldReader:
    """A position in bytes that moves forward only."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    @property
    def is_at_end(self) -> bool:
        """Whether nothing is left."""
        return self._offset == len(self._data)

    def take(self, size: int, what: str) -> bytes:
        """The next `size` bytes."""
        end = self._offset + size
        if end > len(self._data):
            raise I2pError(f"the bytes end within {what}")
        taken = self._data[self._offset : end]
        self._offset = end
        return taken

    def number(self, size: int, what: str) -> int:
        """The next `size` bytes as an unsigned number."""
        return int.from_bytes(self.take(size, what), "big")

    def destination(self) -> Destination:
        """The destination that is next."""
        destination, self._offset = read_destination(self._data, self._offset)
        return destination

    def mapping(self) -> dict[str, str]:
        """The Mapping that is next."""
        mapping, self._offset = read_mapping(self._data, self._offset)
        return mapping

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(len(self._data) - self._offset, "the rest")
