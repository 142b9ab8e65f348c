"""Which identities and servers belong to the farm, as the log decides it and the leader proposes it."""
