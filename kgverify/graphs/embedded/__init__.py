"""The knowledge graphs that come with kgverify, one folder each."""
