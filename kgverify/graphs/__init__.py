"""Knowledge graphs: their files in every common format, and the graphs that come with kgverify."""

from kgverify.graphs.graph import GraphFile, KnowledgeGraph, Split
from kgverify.graphs.load import embedded_names, load_graph

__all__ = ["GraphFile", "KnowledgeGraph", "Split", "embedded_names", "load_graph"]
