"""Help of the command line: its documents, and completion in a shell."""
