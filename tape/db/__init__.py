"""The shell: everything that talks to a database.

``engine`` opens databases, runs transactions and says what their errors mean. ``schema`` holds the tables, their guards
and the upgrades of old databases. ``sql`` holds every statement and the rows it returns. ``view`` is one tape as of one
point, with what it inherits. ``record`` writes entries and their view rows. ``forks`` forks, merges, discards and
splits tapes. ``read`` answers what handles ask. ``feed`` reads all tapes in the order of their commits. ``search``
fills and asks the index. ``transfer`` exports and imports. ``maintain`` verifies, rebuilds, inspects, repairs and
purges. ``rls`` is row-level security on PostgreSQL.
"""
