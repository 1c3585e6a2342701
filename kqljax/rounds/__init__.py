"""draft"""
from kqljax.rounds.recipe import DEFAULT, Recipe
from kqljax.rounds.transitions import Transitions
from kqljax.rounds.training import train, evaluate
