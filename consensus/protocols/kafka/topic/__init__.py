"""A log as a topic of one partition: its interface, and the services of its consumers and producers."""
