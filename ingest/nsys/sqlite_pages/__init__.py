"""SQLite read without ever writing: pages into whole columns, rows where pages do not do."""
