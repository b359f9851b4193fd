"""A statement's text: tokens, options, and the tree of a query. sqlglot lives here."""
