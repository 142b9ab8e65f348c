"""The checks of `garlicfarm doctor`."""
