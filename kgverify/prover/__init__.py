"""Internal: the fast evaluator: compiled stages, fused kernels, native C++, faults and training.

The harness never names them.
"""
