"""Graphs and their barriers; who leads, who works, and what waits for an epoch."""
