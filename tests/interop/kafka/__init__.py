"""The product's KRaft and its topic, together with Apache Kafka."""
