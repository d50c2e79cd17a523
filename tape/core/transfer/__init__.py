"""Export and import, without a database: the format and its checks."""
