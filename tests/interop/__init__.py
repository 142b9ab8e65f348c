"""Tests with other programs: they read bytes of the product, and the product reads theirs (`make interop`)."""
