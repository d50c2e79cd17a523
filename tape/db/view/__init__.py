"""The view of a tape inside a transaction: paths, messages, slots, lineage."""
