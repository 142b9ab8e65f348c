"""Real processes of `garlicfarm` on loopback, controlled from outside, like by an operator."""
