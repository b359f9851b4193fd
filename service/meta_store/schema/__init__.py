"""The shape of the tables, for statements and for Alembic's comparison; the DDL itself is in `migrations`."""
