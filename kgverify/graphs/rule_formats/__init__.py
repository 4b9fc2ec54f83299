"""The formats of rule files, one module each; `kgverify.graphs.rules` tells them apart."""
