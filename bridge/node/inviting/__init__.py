"""Invitations: a token gives a new node the farm key and its approval, until it expires or its uses are spent."""
