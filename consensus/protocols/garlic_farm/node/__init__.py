"""Connections of the Garlic Farm protocol: listener, links, joining servers, clients."""
