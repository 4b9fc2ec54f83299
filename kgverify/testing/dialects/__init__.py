"""The dialect of an engine, found by experiments."""
