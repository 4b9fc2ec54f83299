"""Benchmarks of the reference and of every compile mode, each compared before it is timed.

`modes.measure_modes` gives a `result.BenchResult`; `compare.compare_runs` compares two, `plot.render_plot` draws one. Only
`modes` and the modules with which it measures load torch.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
