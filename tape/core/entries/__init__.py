"""Entries: what each kind says, how entries are chained, and the keys that are derived for them."""
