"""Connectors: how rows come from external systems and leave for them. Next: `workers.connectors.port`."""
