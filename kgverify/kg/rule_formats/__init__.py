"""The formats of rule files, one module each; `kgverify.kg.rules` tells them apart."""
