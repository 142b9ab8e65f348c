"""`garlicfarm pipeline`: the commands, their options, and their output."""
