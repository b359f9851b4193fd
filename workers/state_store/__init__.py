"""Read and write versioned tables, as workers do."""
