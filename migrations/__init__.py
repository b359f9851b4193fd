"""The meta store's schema as a sequence of migrations; NOTES.md says what each is for, newest first."""
