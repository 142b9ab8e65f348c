"""Tests that take minutes, each with a separate command (`make soak-kills`, `make soak-cluster`)."""
