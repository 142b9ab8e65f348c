"""An endpoint for ØMQ Raft clients in addition to the Garlic Farm port: they read the farm's log, and may write."""
