"""Parts that keep a command running and bound its end: standard streams that never stop it, and a deadline."""
