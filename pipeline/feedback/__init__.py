"""Feedback: factors from the newest entries of each batch, submitted to the farm periodically."""
