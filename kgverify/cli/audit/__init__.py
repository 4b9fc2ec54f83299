"""The `kgverify audit` commands."""
