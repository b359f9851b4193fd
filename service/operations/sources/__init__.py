"""Create, check and show sources and their followed tables, and clean up their external databases."""
