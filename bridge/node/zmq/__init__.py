"""An endpoint for ØMQ Raft clients beside the Garlic Farm port: they read the farm's log, and may write to it."""
