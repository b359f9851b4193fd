"""Sources and the tables that follow them: created, checked, shown, kept in order outside."""
