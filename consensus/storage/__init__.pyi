from .directory import (
    Directory as Directory,
    OutOfSpaceError as OutOfSpaceError,
    check_place as check_place,
    open_directory as open_directory,
)
from .disk import (
    PROCESS_STOP_SECONDS as PROCESS_STOP_SECONDS,
    DamagedStorageError as DamagedStorageError,
    DiskHangsError as DiskHangsError,
    DiskOperation as DiskOperation,
    DiskReader as DiskReader,
    ForeignStorageError as ForeignStorageError,
    StorageError as StorageError,
    StorageInUseError as StorageInUseError,
)
from .disk_worker import ServerDisk as ServerDisk
from .durable_file import (
    open_aside as open_aside,
    remove_left_over as remove_left_over,
    replace_file as replace_file,
    sync_directory as sync_directory,
)
from .file_access import access_advice as access_advice
from .file_access import errors_with_path as errors_with_path
from .hard_state import STATE_FILE as STATE_FILE, HardStateFile as HardStateFile
from .jobs import StorageReadResult as StorageReadResult
from .planner import (
    Owner as Owner,
    Recovery as Recovery,
    StorageOptions as StorageOptions,
    read_extents as read_extents,
    recover as recover,
)
from .records import SEGMENT_HEADER_BYTES as SEGMENT_HEADER_BYTES, RecordError as RecordError
from .snapshot_image import ImageReader as ImageReader, ImageWriter as ImageWriter
from .stored_log import (
    Place as Place,
    StoredEntry as StoredEntry,
    StoredLog as StoredLog,
    StoredSegment as StoredSegment,
    open_stored_log as open_stored_log,
)
from .verification import (
    StorageVerdict as StorageVerdict,
    Verification as Verification,
    verify_storage as verify_storage,
)
