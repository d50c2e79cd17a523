"""PostgreSQL, and Citus on it: connections, transactions in as few trips as can be, and what an error means."""
