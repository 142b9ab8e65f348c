"""Views, requests and responses of a node, for operators and programs, and their JSON."""
