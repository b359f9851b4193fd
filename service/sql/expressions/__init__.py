"""Scalar expressions of a view: typed as Postgres does, printed in Spark SQL."""
