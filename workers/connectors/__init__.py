"""Connectors: how rows leave for external systems. Next: `workers.connectors.port`."""
