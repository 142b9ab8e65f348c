"""The product's bytes read by the software that they are for, and that software's bytes read here: `make interop`."""
