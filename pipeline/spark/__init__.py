"""Spark itself: the session and its settings, Java, scratch files, concurrent queries, and reasons of failures."""
