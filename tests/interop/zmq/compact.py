"""The program of `--compact-command` in the stories: the snapshot is the payloads of all updates in order.

The package's example state machine makes the same snapshot, so snapshots of both implementations can be compared.
"""

import struct
import sys

LENGTH = struct.Struct(">Q")
ENTRY = struct.Struct(">QI")
REQUEST_ID_BYTES = 12
HEAD_BYTES = 20
STATE = 0

given, made = sys.stdin.buffer, sys.stdout.buffer
made.write(given.read(LENGTH.unpack(given.read(LENGTH.size))[0]))
while head := given.read(ENTRY.size):
    frame = given.read(ENTRY.unpack(head)[1])
    if frame[REQUEST_ID_BYTES] == STATE:
        made.write(frame[HEAD_BYTES:])
