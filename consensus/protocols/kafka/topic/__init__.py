"""A log as a topic of one partition, for clients: what it must tell, what its readers and its writers ask."""
