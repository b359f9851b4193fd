"""Comparing a relation with what its text, or its external table, answers."""
