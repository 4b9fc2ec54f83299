"""Compile time and graph size."""

from kgverify.audit.properties.compiled_run import CompiledRun
from kgverify.audit.properties.notes import Notes


def measure_graphs(run: CompiledRun, notes: Notes, prefix: str = "") -> None:
    """Graphs, their nodes, the seconds spent in compiling, and the kernels that were generated."""
    notes.measures[f"{prefix}graphs"] = len(run.graphs)
    notes.measures[f"{prefix}graph_nodes"] = max((graph.num_nodes for graph in run.graphs), default=0)
    # Frames compiled within a frame count in its time.
    notes.measures[f"{prefix}compile_seconds"] = sum(each.seconds for each in run.compilations)
    notes.measures[f"{prefix}kernels_generated"] = run.num_kernels
