"""The control endpoint: its server, its client, and the handlers of its routes."""
