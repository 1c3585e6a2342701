"""The paper's theory as functions: dimensions, covering numbers, confidence width, regret bound, and MDPs to check it on.

docs/theory.md goes through the paper, statement by statement.
"""

from kqljax.theory.bounds import (
    covering_term,
    effective_dimension_bound,
    log_covering_functions,
    log_covering_operators,
)
from kqljax.theory.dimensions import (
    Dimensions,
    dimensions_over_time,
    effective_dimension,
    pseudo_dimension,
    pseudo_dimension_over_time,
    state_dimensions,
)
from kqljax.theory.guarantee import (
    Assumptions,
    RegretBound,
    Width,
    assume,
    confidence_width,
    paper_beta,
    regret_bound,
    sum_of_widths_bound,
    width_parts,
)
from kqljax.theory.mdps import (
    MDP,
    Indicator,
    KnownFeatures,
    Solution,
    chain,
    deterministic,
    grid,
    random_deterministic,
    random_linear_mdp,
    solve_tabular,
    tree,
)
from kqljax.theory.optimism import Optimism, watch_optimism
from kqljax.theory.regret import GammaRegret, growth_exponent, measured_regret

__all__ = [
    "MDP",
    "Assumptions",
    "Dimensions",
    "GammaRegret",
    "Indicator",
    "KnownFeatures",
    "Optimism",
    "RegretBound",
    "Solution",
    "Width",
    "assume",
    "chain",
    "confidence_width",
    "covering_term",
    "deterministic",
    "dimensions_over_time",
    "effective_dimension",
    "effective_dimension_bound",
    "grid",
    "growth_exponent",
    "log_covering_functions",
    "log_covering_operators",
    "measured_regret",
    "paper_beta",
    "pseudo_dimension",
    "pseudo_dimension_over_time",
    "random_deterministic",
    "random_linear_mdp",
    "regret_bound",
    "solve_tabular",
    "state_dimensions",
    "sum_of_widths_bound",
    "tree",
    "watch_optimism",
    "width_parts",
]
