"""Operators' side of KRaft: settings, a server's directory, and a client of the quorum."""
