"""Spark itself: the session and its settings, Java, scratch files, queries side by side, and what failures mean."""
