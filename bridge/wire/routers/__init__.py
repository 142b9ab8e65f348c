"""The files of I2P routers on this machine, as values: configurations, tunnels, processes and listening ports."""
