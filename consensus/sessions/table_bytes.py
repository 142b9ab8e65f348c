"""The bytes of a table in a snapshot: numbers of eight bytes, and texts after their length.

The bytes of a snapshot may come from another server. So a reader checks each size and each number, and raises exactly
one type of error.
"""

NUMBER_BYTES = 8
NUMBER_MAX = 2**63 - 1


def number_bytes(value: int) -> bytes:
    """Return the bytes of a number."""
    return value.to_bytes(NUMBER_BYTES, "big")


def text_bytes(data: bytes) -> bytes:
    """Return the bytes of a text."""
    return number_bytes(len(data)) + data


class TableReader:
    """A reader of one table. It raises `error`, with `name` in the text."""

    def __init__(self, data: bytes, name: str, error: type[ValueError]) -> None:
        self._data = data
        self._name = name
        self._error = error
        self._place = 0

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        taken = self._data[self._place : self._place + size]
        if len(taken) != size:
            raise self._error(f"{self._name} ends after {len(self._data)} bytes, within a value")
        self._place += size
        return taken

    def number(self, at_most: int = NUMBER_MAX) -> int:
        """Return the next number."""
        value = int.from_bytes(self.take(NUMBER_BYTES), "big")
        if value > at_most:
            raise self._error(f"{self._name} contains the number {value} where {at_most} is the limit")
        return value

    def text(self, at_most: int) -> bytes:
        """Return the next text."""
        return self.take(self.number(at_most))

    def end(self) -> None:
        """Check that all bytes are read."""
        if self._place != len(self._data):
            raise self._error(f"{self._name} is followed by {len(self._data) - self._place} unknown bytes")
