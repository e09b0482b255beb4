"""Decisions by a posterior: bandits, active learning and Bayesian optimisation, in one loop with one interface.

A task makes problems, an agent is a registered method with a rule, and a rule chooses from draws of functions,
marginals or class probabilities of the fitted posterior (:mod:`.question`). See ``docs/decisions.md`` to add more.
"""

from .agents import Agent as Agent
from .bandits import Bandit as Bandit
from .decision import TASKS as TASKS
from .decision import DecisionConfig as DecisionConfig
from .decision import decide as decide
from .decision import register_task as register_task
from .decision import table as table
from .loop import play as play
from .own import Arms as Arms
from .own import Maximise as Maximise
from .own import Pool as Pool
from .question import Belief as Belief
from .question import Problem as Problem
from .question import Question as Question
from .rules import RULES as RULES
from .rules import register_rule as register_rule
