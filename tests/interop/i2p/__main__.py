"""Runs pytest in the namespaces of the closed I2P network: `python -m tests.interop.i2p [arguments of pytest]`."""

import sys

from tests.interop.i2p import namespace

sys.exit(namespace.run(sys.argv[1:]))
