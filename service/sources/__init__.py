"""Access external Postgres databases to inspect and prepare them for CDC. The service connects to them only here."""
