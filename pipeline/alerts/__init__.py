"""Alerts from the watch: the servers down now, the receivers, and the delivered messages."""
