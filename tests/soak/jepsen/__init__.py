"""Real nodes under real faults, checked by one history: `make soak-jepsen` (docs/reference/soak-jepsen.md)."""
