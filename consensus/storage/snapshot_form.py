"""The form of a snapshot: which bytes stand for the state machine's between servers and on disk.

    IMAGE   checks itself, and says which position it is of and which configuration was in force (`snapshot_image`)
    PLAIN   the state machine's own bytes and nothing else, for protocols whose snapshots are such: what IMAGE says of
            itself comes in the protocol's message with each chunk, and lies in the file beside the bytes on disk
            (InstallSnapshot has it; a chunk that is fetched has not, so followers that fetch cannot use this form)

A protocol chooses one for its group (`StorageOptions.snapshot_form`), or has one of its own. The offsets and the size
that servers tell each other are those of the form. A plain snapshot that was damaged on its way is not noticed by the
form: its protocol, or the state machine's own format, has to. On disk the header of its file holds a checksum of it.

The file of a snapshot says by `file_format` of which form it is: 1 IMAGE, 2 PLAIN, from 3 on those of protocols. All
but an image have the configuration beside them in the file, and are checked by size and checksum when they are found.
"""

from collections.abc import Iterator
from typing import Protocol

from consensus.core.model import Configuration, LogId, SnapshotDescription
from consensus.storage.checksum import crc32c
from consensus.storage.snapshot_image import ImageReader, ImageWriter

IMAGE_FORMAT = 1


class SnapshotWriting(Protocol):
    """Makes the bytes of one snapshot: `begin`, any number of `blocks`, `end`; then `description` is known."""

    @property
    def description(self) -> SnapshotDescription:
        """What the snapshot is, once it ended."""

    def begin(self) -> bytes:
        """What comes first."""

    def blocks(self, data: bytes) -> bytes:
        """Some of the state machine's bytes."""

    def end(self) -> bytes:
        """What comes last."""


class SnapshotReading(Protocol):
    """Takes a snapshot in chunks of any size; raises `RecordError` for bytes that are none."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take more bytes; gives those of the state machine in them."""

    def finish(self) -> SnapshotDescription:
        """No more bytes come: what they were."""


class SnapshotForm(Protocol):
    """One form. What is said of a snapshot beside its bytes is `last` and `configuration`."""

    @property
    def file_format(self) -> int:
        """The number of the form in the header of a file."""

    def writing(self, last: LogId, configuration: Configuration) -> SnapshotWriting:
        """Make a snapshot."""

    def reading(self, last: LogId, configuration: Configuration) -> SnapshotReading:
        """Read one."""


class _Image:
    file_format = IMAGE_FORMAT

    def writing(self, last: LogId, configuration: Configuration) -> SnapshotWriting:
        return ImageWriter(last, configuration)

    def reading(self, _last: LogId, _configuration: Configuration) -> SnapshotReading:
        return ImageReader()


class _Plain:
    file_format = 2

    def writing(self, last: LogId, configuration: Configuration) -> SnapshotWriting:
        return PlainSnapshot(last, configuration)

    def reading(self, last: LogId, configuration: Configuration) -> SnapshotReading:
        return PlainSnapshot(last, configuration)


class PlainSnapshot:
    """A plain snapshot that is made or read: only its size and checksum are taken down."""

    def __init__(self, last: LogId, configuration: Configuration) -> None:
        self._last = last
        self._configuration = configuration
        self._size_bytes = 0
        self._checksum = 0

    @property
    def description(self) -> SnapshotDescription:
        """What it is so far."""
        return SnapshotDescription(self._last, self._configuration, self._size_bytes, self._checksum)

    def begin(self) -> bytes:
        """Nothing comes first."""
        return b""

    def blocks(self, data: bytes) -> bytes:
        """The state machine's bytes, as they are."""
        self._size_bytes += len(data)
        self._checksum = crc32c(data, self._checksum)
        return data

    def end(self) -> bytes:
        """Nothing comes last."""
        return b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """All bytes are the state machine's."""
        yield self.blocks(data)

    def finish(self) -> SnapshotDescription:
        """Whatever came is the snapshot."""
        return self.description


IMAGE: SnapshotForm = _Image()
PLAIN: SnapshotForm = _Plain()
