"""A debug mode of the tests that reports blocking work in the thread of an event loop (`watch`)."""
