"""The tables, and how a database gets and upgrades them."""
