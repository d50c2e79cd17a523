"""The shell: everything that talks to a database.

``schema`` says what the tables are, ``statements`` holds every SQL statement, ``connect`` opens engines,
``transaction`` owns locks, commits and retries, ``record`` writes entries, ``read`` reads the view, ``audit``
verifies and rebuilds it, ``migrate`` brings old databases up to date.
"""
