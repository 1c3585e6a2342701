"""The paper's theory as functions: dimensions, covering numbers, confidence width, regret bound.

docs/theory.md goes through the paper, statement by statement.
"""

from kqljax.theory.bounds import (
    covering_term,
    effective_dimension_bound,
    log_covering_functions,
    log_covering_operators,
)
from kqljax.theory.dimensions import (
    dimensions_over_time,
    effective_dimension,
    pseudo_dimension,
    pseudo_dimension_over_time,
    state_dimensions,
)
from kqljax.theory.guarantee import (
    Assumptions,
    assume,
    confidence_width,
    from_theory,
    paper_beta,
    regret_bound,
    sum_of_widths_bound,
    width_parts,
)
from kqljax.theory.measured import measured_regret, watch_optimism

__all__ = [
    "Assumptions",
    "assume",
    "confidence_width",
    "covering_term",
    "dimensions_over_time",
    "effective_dimension",
    "effective_dimension_bound",
    "from_theory",
    "log_covering_functions",
    "log_covering_operators",
    "measured_regret",
    "paper_beta",
    "pseudo_dimension",
    "pseudo_dimension_over_time",
    "regret_bound",
    "state_dimensions",
    "sum_of_widths_bound",
    "watch_optimism",
    "width_parts",
]
