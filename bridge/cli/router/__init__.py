"""The command `garlicfarm router`."""
