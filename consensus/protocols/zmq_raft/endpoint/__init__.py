"""What answers clients: an endpoint in front of any log."""
