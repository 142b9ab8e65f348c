"""Parts of long-running commands: their standard streams, their memory, and a deadline for their end."""
