"""Tests of all packages; their names specify the behavior."""
