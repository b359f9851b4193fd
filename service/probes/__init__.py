"""Call the health checks that users configured."""
