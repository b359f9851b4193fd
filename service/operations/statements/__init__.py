"""Parse SQL statements, bind them and call the matching operation."""
