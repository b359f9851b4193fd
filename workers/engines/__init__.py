"""Compute a table scan's part of an epoch, in Spark or in the state store. Next: `workers.engines.port`."""
