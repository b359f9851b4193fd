"""The read model: how jobs, relations, graphs and the service stand. Nothing here decides or changes anything."""
