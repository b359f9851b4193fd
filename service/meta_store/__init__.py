"""The meta store on Postgres: one file per aggregate. This package turns rows into domain values."""
