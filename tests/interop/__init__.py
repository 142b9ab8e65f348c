"""Our bytes in the hands of the software that they are for, and its bytes in ours: `make interop`."""
