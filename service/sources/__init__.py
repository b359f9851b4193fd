"""External Postgres databases, looked at and prepared to be followed: the only place where the service reaches them."""
