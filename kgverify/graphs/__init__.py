"""Knowledge graphs: the readers of their files, and the graphs that come with kgverify."""
