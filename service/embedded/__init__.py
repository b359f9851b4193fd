"""Postgres and Java for a machine that has none."""
