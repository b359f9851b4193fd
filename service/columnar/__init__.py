"""Read Arrow, Parquet and NDJSON bodies, in a process of their own."""
