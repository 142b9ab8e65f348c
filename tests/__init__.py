"""Tests, read as specifications."""
