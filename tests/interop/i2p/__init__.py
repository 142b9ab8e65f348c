"""A closed I2P network of i2pd and Java routers, and the farm's stories on it: `make interop-i2p`.

The network is in a network namespace that has only the loopback device. So its routers can use addresses outside the
reserved ranges, which i2pd requires, and no packet leaves the machine.
"""
