"""`garlicfarm pipeline`: the commands, their options, and what they print."""
