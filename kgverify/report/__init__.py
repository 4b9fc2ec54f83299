"""What people and machines read of a comparison; rendering needs no engine."""
