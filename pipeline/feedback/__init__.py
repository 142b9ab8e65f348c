"""Feedback: factors out of the newest entries of each batch, submitted to the farm now and then."""
