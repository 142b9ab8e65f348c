"""What keeps a command running and lets it end: standard streams that never stop it, and an end in time."""
