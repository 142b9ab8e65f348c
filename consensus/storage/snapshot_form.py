"""The form of a snapshot: how the state machine's bytes are represented between servers and on disk.

    IMAGE   contains its own checksums, position and configuration (`snapshot_image`)
    PLAIN   only the state machine's own bytes, for protocols with such snapshots. The protocol's message with each
            chunk must contain position and configuration. InstallSnapshot has them. A fetched chunk does not, so
            followers that fetch cannot use this form.

A protocol chooses one for its group (`StorageOptions.snapshot_form`), or has its own. Offsets and sizes in messages
between servers count the bytes of the form. Damage to a plain snapshot on its way must be detected by the protocol or
by the state machine's own format. On disk the header of the file holds a checksum.

The header of a snapshot's file contains the position and the form's number (`file_format`): 1 IMAGE, 2 PLAIN, 3 Kafka's
snapshots (`protocols.kraft`). In forms other than IMAGE, the file ends with the configuration, and recovery checks the
file by size and checksums.
"""

from collections.abc import Iterator
from typing import Protocol

from consensus.core.model import Configuration, LogId, SnapshotDescription
from consensus.storage.snapshot_image import CountedSnapshot, ImageReader, ImageWriter

IMAGE_FORMAT = 1


class SnapshotWriting(Protocol):
    """Makes the bytes of one snapshot: `begin`, any number of `blocks`, `end`; then `description` is known."""

    @property
    def description(self) -> SnapshotDescription:
        """Return the description of the snapshot, after its end."""

    def begin(self) -> bytes:
        """Return the bytes of the beginning."""

    def blocks(self, data: bytes) -> bytes:
        """Return some of the state machine's bytes in this form."""

    def end(self) -> bytes:
        """Return the bytes of the end."""


class SnapshotReading(Protocol):
    """A reader of a snapshot in chunks of any size; it raises `RecordError` for invalid bytes."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Process the next chunk; yield the state machine's bytes in it."""

    def finish(self) -> SnapshotDescription:
        """Return the description after the last bytes."""


class SnapshotForm(Protocol):
    """One form. `last` and `configuration` describe a snapshot in addition to its bytes."""

    @property
    def file_format(self) -> int:
        """The number of the form in the header of a file."""

    def writing(self, last: LogId, configuration: Configuration) -> SnapshotWriting:
        """Return a writer of a snapshot in this form."""

    def reading(self, last: LogId, configuration: Configuration) -> SnapshotReading:
        """Return a reader of a snapshot in this form."""


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


class PlainSnapshot(CountedSnapshot):
    """A plain snapshot being made or read: only its size and checksum are recorded."""

    def begin(self) -> bytes:
        """Return empty bytes: a plain snapshot does not have a beginning."""
        return b""

    def blocks(self, data: bytes) -> bytes:
        """Return the state machine's bytes, unchanged."""
        return self._count(data)

    def end(self) -> bytes:
        """Return empty bytes: a plain snapshot does not have an end."""
        return b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield all bytes: they are the state machine's."""
        yield self.blocks(data)

    def finish(self) -> SnapshotDescription:
        """Return the description: any bytes are a snapshot."""
        return self.description


IMAGE: SnapshotForm = _Image()
PLAIN: SnapshotForm = _Plain()
