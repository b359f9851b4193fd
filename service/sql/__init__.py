"""Parse, bind and plan SQL: the text of a statement becomes domain values. Only this package uses sqlglot."""
