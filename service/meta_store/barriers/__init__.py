"""Graphs and their barriers, the leader lease, workers, and the commands and statements that wait for an epoch."""
