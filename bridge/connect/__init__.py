"""The client of a farm: it fetches the signed list of leaves, chooses one, and opens streams to it through SAM."""
