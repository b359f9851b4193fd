"""Commands: what users ask of barriers, stored, sent to the graphs concerned, and carried by the next barrier."""
