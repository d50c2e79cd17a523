"""What workers agree on through a tape: requests and their decisions, leases, pointers."""
