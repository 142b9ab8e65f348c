"""Benchmarks (`make bench`): each figure stands beside a physical limit that is measured in the same run."""
