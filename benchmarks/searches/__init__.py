"""Search engines with planted faults, by which the differ of searches is measured.

Two right engines, in two styles, were written from the semantics of a search alone: `arrays.ArraySearch` takes a level of
all candidates at once, `lists.ListSearch` one beam after the other. `faults.FAULTS` is the table of the planted faults.
Both engines and faults were written without knowledge of the differ.
"""
