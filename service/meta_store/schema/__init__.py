"""Describe the tables, for statements and for Alembic's comparison. The DDL is in `migrations`."""
