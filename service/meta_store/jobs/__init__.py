"""Jobs, their fragments, actors, positions, limits, queue and partial graphs."""
