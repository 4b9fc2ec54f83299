"""The knowledge graphs that come with kgverify, each in a folder."""
