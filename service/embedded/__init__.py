"""Provide Postgres and Java on a machine that has none."""
