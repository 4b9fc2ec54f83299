"""The version of kgverify."""

__version__ = "0.1.0"
