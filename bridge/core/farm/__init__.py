"""The farm's replicated state machine."""
