"""Tests of the trio shells, and of the planners beneath them."""
