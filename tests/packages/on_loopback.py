"""Settings that replace the defaults, so that a node is a complete farm and publishes on loopback."""

DEMO = ("#demo = false", "demo = true")
"""Without a router a node publishes only as a demonstration."""
ON_LOOPBACK = """
[gossip]
bind = "127.0.0.1:7668"
broadcast = "off"
timing = "local"
[consensus]
timing = "local"
[publishing]
signing_key = "/etc/garlicfarm/signing.key"
pace = "reporting-period"
reporting_period_ms = 1000
[[leaf]]
destination = "{leaf}"
"""
