"""What a client decides: which leaf it tries, how long it waits, and which structure it believes."""
