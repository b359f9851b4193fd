"""Access the state store from the service: authority, visibility, clean-up, users' SELECTs and staged rows."""
