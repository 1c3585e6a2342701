"""What comes out of an experiment: statistics over seeds, tables and figures."""

from kqljax.report.statistics import Pooled, Summary, pooled, summarise, to_rliable

__all__ = ["Pooled", "Summary", "pooled", "summarise", "to_rliable"]
