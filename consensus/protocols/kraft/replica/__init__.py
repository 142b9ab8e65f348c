"""A voter or an observer of a quorum: what it asks the others, what it answers them, what it keeps."""
