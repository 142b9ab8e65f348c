"""What operators give and see: settings, a server's directory, and a quorum asked from outside."""
