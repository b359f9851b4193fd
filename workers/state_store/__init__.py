"""Versioned tables as the workers read and write them."""
