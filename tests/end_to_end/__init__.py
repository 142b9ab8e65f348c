"""Real processes of `garlicfarm` on loopback, controlled from outside, as an operator does."""
