"""A peer: transport, replicated log, compaction and broadcast around one consensus server."""
