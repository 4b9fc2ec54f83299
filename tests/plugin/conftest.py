"""pytest runs inside of tests."""

pytest_plugins = ["pytester"]
