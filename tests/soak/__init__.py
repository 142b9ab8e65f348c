"""Tests that take minutes: commands of their own (`make soak-kills`, `make soak-cluster`), not part of `make test`."""
