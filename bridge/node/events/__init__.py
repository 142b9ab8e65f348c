"""The node's trace of events and its alarms."""
