"""Feedback: weights out of the tables, submitted to the farm as factors, each batch once."""
