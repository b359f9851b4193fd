"""Time: the only `while` of the service."""
