"""Takes the fields of an I2P structure off the front of untrusted bytes.

Each field has a name, so that the error for missing bytes shows the place. Bytes are copied only after the check of
their length. The only error is `I2pError`, which a decoder turns into its own.
"""

from bridge.wire.i2p.structures import Destination, I2pError, read_destination, read_mapping


class FieldReader:
    """A position in bytes that moves forward only."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    @property
    def is_at_end(self) -> bool:
        """True if no bytes are left."""
        return self._offset == len(self._data)

    def take(self, size: int, what: str) -> bytes:
        """Return the next `size` bytes."""
        end = self._offset + size
        if end > len(self._data):
            raise I2pError(f"the bytes end within {what}")
        taken = self._data[self._offset : end]
        self._offset = end
        return taken

    def number(self, size: int, what: str) -> int:
        """Return the next `size` bytes as an unsigned number."""
        return int.from_bytes(self.take(size, what), "big")

    def destination(self) -> Destination:
        """Return the next destination."""
        destination, self._offset = read_destination(self._data, self._offset)
        return destination

    def mapping(self) -> dict[str, str]:
        """Return the next Mapping."""
        mapping, self._offset = read_mapping(self._data, self._offset)
        return mapping

    def rest(self) -> bytes:
        """Return all remaining bytes."""
        return self.take(len(self._data) - self._offset, "the rest")
