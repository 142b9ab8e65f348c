"""Tests of modules that do I/O: nodes, servers, protocols, stored files and commands."""
