"""Start and end worker processes."""
