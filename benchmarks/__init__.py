"""Benchmarks that anyone can run (`make bench`): each figure beside a physical limit measured in the same run."""
