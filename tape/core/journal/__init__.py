"""What a run needs beside its history: requests that someone decides, leases, and pointers to a moment of a tape."""
