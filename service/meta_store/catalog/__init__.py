"""Relations and their names."""
