"""Connections of Kafka's protocol, from both ends: frames, TLS and SASL, requests to a service and their responses."""
