"""Maintenance: verify, rebuild, purge, inspect and repair."""
