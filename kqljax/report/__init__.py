"""Reports: statistics over seeds, learning curves, maps of an agent, its page and GIF.

statistics   IQM and bootstrap intervals, one number a seed
curves       learning curves over seeds, as a figure
maps         value, spread and policy of an agent over two entries of the observation
agent_page   one HTML page of an agent
sweeps       the best settings of a sweep and its figure
gif          an episode of an agent as a GIF
"""

from kqljax.report.statistics import Pooled, Summary, pooled, summarise, to_rliable

__all__ = ["Pooled", "Summary", "pooled", "summarise", "to_rliable"]
