"""KRaft's bytes, without I/O: control records, snapshots, and requests and replies of the core as messages."""
