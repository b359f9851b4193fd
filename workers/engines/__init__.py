"""What computes a table scan's part of an epoch: Spark, or the state store itself. Next: `workers.engines.port`."""
