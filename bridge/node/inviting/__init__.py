"""Invitations: a token gives a new node the farm key and its approval, until its uses are spent."""
