"""Arrow, Parquet and NDJSON bodies, read in a process of their own."""
