"""The content of a trace: columns, header, levels, digests and their rules."""
