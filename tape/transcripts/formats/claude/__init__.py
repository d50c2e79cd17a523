"""Claude Code: session files, and what it prints without a terminal."""
