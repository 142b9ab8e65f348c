"""The engine of a run without a JVM: the log's batches in this process, with a checkpoint that Spark can continue."""
