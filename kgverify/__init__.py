"""kgverify: find where a compiled knowledge-graph prover stops agreeing with a reference prover.

Importing this package loads neither torch nor h5py; both are imported by the modules that need them.
"""

__version__ = "0.1.0"
