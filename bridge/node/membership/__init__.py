"""The other nodes: discovery of members, and the check of their membership in the farm."""
