"""What a trace contains: columns, header, levels, digests and their rules."""
