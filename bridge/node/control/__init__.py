"""The control endpoint: its server, its client, and what stands behind each route."""
