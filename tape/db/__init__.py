"""The shell: everything that talks to a database.

``schema`` says what the tables are, ``sql`` holds every statement, ``connect`` opens engines, ``migrate`` brings old
databases up to date, ``transaction`` owns locks, commits and the meaning of errors. ``record`` writes entries and
``project`` their view rows, ``lookup`` answers the questions of a plan, ``branching`` forks and merges,
``splitting`` ends a tape and begins the next. ``paths`` and ``read`` read the view, ``family`` is a fork's lineage,
``audit`` verifies and rebuilds. ``catalog`` lists tapes and tells how the store is, ``purging`` removes them,
``moving`` exports and imports, ``copying`` writes what is imported and ``arriving`` hides it until it is whole.
``feed`` reads all tapes in order, ``bell`` wakes who follows it, ``index`` is filled behind it, and ``search`` asks
the index.
"""
