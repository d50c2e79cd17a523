"""Summaries: which of them hold on a path, and how a run is chosen for one."""
