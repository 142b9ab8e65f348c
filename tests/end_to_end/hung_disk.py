"""A hanging disk for processes of the tests: each sync waits while a file exists.

If the file contains a number, each sync takes this many seconds longer: a slow disk.

The variable `GARLICFARM_TEST_HUNG_DISK` names the file. Only syncs hang, as on a disk with a full queue: reads are
served from the page cache.
"""

import os
import time
from pathlib import Path

ENVIRONMENT = "GARLICFARM_TEST_HUNG_DISK"
_POLL_S = 0.02


def install_if_wanted() -> None:
    """Make each sync of this process wait while the named file exists."""
    named = os.environ.get(ENVIRONMENT)
    if not named:
        return
    sync, sync_data, file = os.fsync, os.fdatasync, Path(named)

    def wait() -> None:
        while file.exists():
            if text := file.read_text(encoding="ascii"):
                time.sleep(float(text))
                return
            time.sleep(_POLL_S)

    def hanging_sync(descriptor: int) -> None:
        wait()
        sync(descriptor)

    def hanging_sync_data(descriptor: int) -> None:
        wait()
        sync_data(descriptor)

    os.fsync, os.fdatasync = hanging_sync, hanging_sync_data  # type: ignore[assignment] # their arguments have no names
