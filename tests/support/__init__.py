"""What the tests use besides tape itself: backends, other processes, models of the store, forged files."""
