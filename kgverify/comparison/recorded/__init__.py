"""What two recorded traces are evidence for."""
