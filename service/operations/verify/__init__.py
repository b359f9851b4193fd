"""Verify a relation: compare it with the result of its query or with its external table."""
