"""Codecs: recorded vectors, round trips, hostile bytes."""
