"""The meta store on Postgres: one aggregate a file; rows become domain values here."""
