"""Is it the compiler? A compiled step looked at rung by rung and property by property."""
