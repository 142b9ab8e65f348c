"""The wire protocols of servers and clients, around one consensus core."""
