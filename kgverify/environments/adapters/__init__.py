"""Adapters: environments as users have them, behind the one interface that kgverify drives."""
