"""What comes out of an experiment: statistics over seeds, results files, tables and figures.

Everything here reads the document that `kqljax table1` writes (`records.py` says what is in it), so tables and figures
can be made again from a stored `table1.json` without running anything.
"""

from kqljax.report.statistics import Pooled, Summary, pooled, summarise, to_rliable

__all__ = ["Pooled", "Summary", "pooled", "summarise", "to_rliable"]
