"""The state store as the service uses it: authority, visibility, clean-up, users' SELECTs and staged rows."""
