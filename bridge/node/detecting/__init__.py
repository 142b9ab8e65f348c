"""The I2P routers of this machine, found by their processes, ports and files, and a node's settings for one of them."""
