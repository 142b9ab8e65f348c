"""The commands that make a node of this machine: `init`, `join`, `invite`."""
