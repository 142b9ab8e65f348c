"""The end of a node that cannot go on, in words for whoever runs it."""


class NodeStopped(Exception):  # noqa: N818 - it is an end, told in words, not a fault of the program
    """The node cannot go on; the text says why and what to do."""
