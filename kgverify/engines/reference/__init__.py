"""The adapter to the reference prover: the only package of kgverify that knows `kgreference`."""
