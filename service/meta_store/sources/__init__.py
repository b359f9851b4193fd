"""Sources, and the tables that follow them through CDC."""
