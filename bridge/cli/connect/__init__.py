"""`garlicfarm connect`: the client of farms for programs of this machine, its links file and its status."""
