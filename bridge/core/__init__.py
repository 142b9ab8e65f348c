"""The pure floor of the farm: formation, the replicated state machine, the publisher's choice, the operator's view."""
