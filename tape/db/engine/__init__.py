"""Engines: connections, transactions, locks and wake-ups on SQLite and PostgreSQL."""
