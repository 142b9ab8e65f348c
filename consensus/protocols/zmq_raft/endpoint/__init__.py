"""An endpoint for clients, in front of any log."""
