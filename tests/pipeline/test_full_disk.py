"""A full disk: the batch fails with the remedy, and its repetition completes every table."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.full_disk import FREE_PAGES


@pytest.mark.soak
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="mounts a small file system: needs root")
def test_batch_on_full_disk_is_completed_later(tmp_path: Path) -> None:
    command = ["unshare", "--mount", sys.executable, "-m", "tests.pipeline.full_disk", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    failures = json.loads(done.stdout)
    assert len(failures) == len(FREE_PAGES)
    for failure in failures:
        assert "No space left on device" in failure
        assert "free some space for --output" in failure
        assert "\x1b" not in failure
