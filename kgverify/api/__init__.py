"""The functions behind `import kgverify`, one in each module. Internal: import them from `kgverify` itself."""
