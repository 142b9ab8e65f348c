"""Our KRaft and our topic beside Apache Kafka."""
