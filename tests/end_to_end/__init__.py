"""Real processes of `garlicfarm` on loopback, driven from outside as an operator would."""
