"""The command garlicfarm."""
