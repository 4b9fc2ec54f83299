"""The fast evaluator: compiled stages, fused kernels, native C++, planted faults and training. The harness names none of it."""
