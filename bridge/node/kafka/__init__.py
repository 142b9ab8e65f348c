"""The farm's log as a Kafka topic."""
