"""Environments with planted faults, by which a differ of environments is measured.

They were written without knowledge of the differ. `faults.FAULTS` is the table of the forty faults.
"""
