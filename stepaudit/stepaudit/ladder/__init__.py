"""Find the compiler setting at which a step starts to deviate, and the cause."""
