"""The pure core of the farm: formation, the replicated state machine, the choice of the publisher."""
