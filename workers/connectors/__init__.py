"""Connectors: read rows from external systems, and write rows to them. Next: `workers.connectors.port`."""
