"""Kafka's protocol as bytes: messages, record batches and logins. Nothing here does I/O."""
