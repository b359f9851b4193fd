"""Jobs, their fragments, actors, positions, limits, queue and graphs of their own."""
