"""Records the messages that Java I2P classes read, verify and write: `python -m tests.interop.record FILE`."""

import json
import sys
import tempfile
import time
from pathlib import Path

from tests.interop import java_i2p
from tests.interop.i2cp_streams import keys, stream

now_s = int(time.time())
with tempfile.TemporaryDirectory() as scratch:
    heard = [
        {
            "key": name,
            "stream": stream(key, now_s).hex(),
            "heard": java_i2p.messages(Path(scratch), "read", [stream(key, now_s).hex()]),
        }
        for name, key in keys(now_s).items()
    ]
    written = dict(line.split() for line in java_i2p.messages(Path(scratch), "write", []))
recording = {"java": java_i2p.VERSION, "now_s": now_s, "heard_by_java": heard, "written_by_java": written}
Path(sys.argv[1]).write_text(json.dumps(recording, indent=1) + "\n")
