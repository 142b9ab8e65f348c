"""The wire protocols by which servers and clients reach one consensus core."""
