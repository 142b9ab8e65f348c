"""KRaft's bytes, without I/O: record batches, control records, requests and replies."""
