"""Each command that a text of the product advises is typed in the situation that prints it."""
