"""Sources, and the tables that follow them."""
