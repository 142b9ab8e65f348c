"""ØMQ Raft on the wire: frames, entries and messages, as pure functions of bytes."""
