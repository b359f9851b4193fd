"""Provide the read model of jobs, relations, graphs and the service. Nothing here decides or changes anything."""
