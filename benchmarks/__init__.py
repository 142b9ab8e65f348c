"""Benchmarks (`make bench`): figures compared with a physical limit measured in the same run."""
