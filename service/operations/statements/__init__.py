"""SQL statements: from a text to the operation that it names."""
