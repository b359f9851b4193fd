"""Stages as Spark SQL."""
