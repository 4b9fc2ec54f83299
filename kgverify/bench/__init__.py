"""How fast, once it is right: the reference and every mode, each compared before it is timed, and the ways to compile a search.

`modes.measure_modes` and `strategies.measure_strategies` give a `result.BenchResult`; `compare.compare_runs` compares two,
`plot.render_plot` draws one. Of what is imported here only `modes`, `strategies` and what they measure with load torch.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
