"""Parts that keep a command running and bound its memory and its end: standard streams never stop it."""
