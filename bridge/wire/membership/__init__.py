"""What nodes tell each other about themselves, and keep of their formation."""
