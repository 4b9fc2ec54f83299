"""The commands: each reads its options, makes one call, prints the result and returns an exit code."""
