"""INSERT, UPDATE and DELETE: bound to relations, printed in Postgres's SQL."""
