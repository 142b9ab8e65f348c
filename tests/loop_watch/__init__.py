"""A debug mode of the tests that reports blocking operations in the thread of an event loop (`watch`)."""
