"""Arrow and Parquet bodies, read in a process of their own."""
