"""What a server stores, for programs that open, read, verify or rebuild it while no server runs; and a durable write.

A server itself opens its storage by `consensus.open_server`. What is named here is fetched when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from consensus.storage.directory import (
        Directory,
        OutOfSpaceError,
        ThreadedDisk,
        check_place,
        open_directory,
        open_storage,
    )
    from consensus.storage.disk import (
        PROCESS_STOP_SECONDS,
        DamagedStorageError,
        DiskHangsError,
        DiskOperation,
        DiskReader,
        ForeignStorageError,
        StorageError,
        StorageInUseError,
    )
    from consensus.storage.disk_worker import ServerDisk
    from consensus.storage.durable_file import replace_file, sync_directory
    from consensus.storage.file_access import access_advice
    from consensus.storage.hard_state import STATE_FILE, HardStateFile
    from consensus.storage.jobs import StorageReadResult
    from consensus.storage.planner import Owner, Recovery, StorageOptions, read_extents, recover
    from consensus.storage.records import SEGMENT_HEADER_BYTES, RecordError
    from consensus.storage.snapshot_image import ImageReader, ImageWriter
    from consensus.storage.stored_log import Place, StoredEntry, StoredLog, StoredSegment, open_stored_log
    from consensus.storage.verification import StorageVerdict, Verification, verify_storage

__all__ = [
    "PROCESS_STOP_SECONDS",
    "SEGMENT_HEADER_BYTES",
    "STATE_FILE",
    "DamagedStorageError",
    "Directory",
    "DiskHangsError",
    "DiskOperation",
    "DiskReader",
    "ForeignStorageError",
    "HardStateFile",
    "ImageReader",
    "ImageWriter",
    "OutOfSpaceError",
    "Owner",
    "Place",
    "RecordError",
    "Recovery",
    "ServerDisk",
    "StorageError",
    "StorageInUseError",
    "StorageOptions",
    "StorageReadResult",
    "StorageVerdict",
    "StoredEntry",
    "StoredLog",
    "StoredSegment",
    "ThreadedDisk",
    "Verification",
    "access_advice",
    "check_place",
    "open_directory",
    "open_storage",
    "open_stored_log",
    "read_extents",
    "recover",
    "replace_file",
    "sync_directory",
    "verify_storage",
]

_HOMES: Final = {
    "consensus.storage.directory": (
        "Directory",
        "OutOfSpaceError",
        "ThreadedDisk",
        "check_place",
        "open_directory",
        "open_storage",
    ),
    "consensus.storage.disk": (
        "DamagedStorageError",
        "DiskHangsError",
        "DiskOperation",
        "DiskReader",
        "ForeignStorageError",
        "PROCESS_STOP_SECONDS",
        "StorageError",
        "StorageInUseError",
    ),
    "consensus.storage.disk_worker": ("ServerDisk",),
    "consensus.storage.durable_file": ("replace_file", "sync_directory"),
    "consensus.storage.file_access": ("access_advice",),
    "consensus.storage.hard_state": ("HardStateFile", "STATE_FILE"),
    "consensus.storage.jobs": ("StorageReadResult",),
    "consensus.storage.planner": ("Owner", "Recovery", "StorageOptions", "read_extents", "recover"),
    "consensus.storage.records": ("RecordError", "SEGMENT_HEADER_BYTES"),
    "consensus.storage.snapshot_image": ("ImageReader", "ImageWriter"),
    "consensus.storage.stored_log": ("Place", "StoredEntry", "StoredLog", "StoredSegment", "open_stored_log"),
    "consensus.storage.verification": ("StorageVerdict", "Verification", "verify_storage"),
}

if not TYPE_CHECKING:  # mypy would take any name for one of the face

    def __getattr__(name: str) -> Any:
        """Fetch a public name from its home."""
        for home, names in _HOMES.items():
            if name in names:
                return getattr(import_module(home), name)
        raise AttributeError(f"module 'consensus.storage' has no attribute {name!r}")
