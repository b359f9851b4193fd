"""Jobs from CREATE to DROP: their queue, their graphs, their actors, and how far they are."""
