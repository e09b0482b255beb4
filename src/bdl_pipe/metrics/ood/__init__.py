"""OOD scores: scores of how unfamiliar a row is, from stored arrays, and how well they detect rows of other data sets.

:mod:`.predictives` has the scores of predictives, :mod:`.arrays` the scores as functions of arrays, :mod:`.rows`
computes them from the rows that evaluation stores, :mod:`.areas` has areas with their errors, and :mod:`.table` the
tables of runs by scores.
"""

from .areas import Area as Area
from .areas import area as area
from .arrays import energy as energy
from .arrays import entropy as entropy
from .arrays import gen as gen
from .arrays import kl_matching as kl_matching
from .arrays import mahalanobis as mahalanobis
from .arrays import max_logit as max_logit
from .arrays import max_softmax as max_softmax
from .arrays import mutual_information as mutual_information
from .arrays import nearest as nearest
from .arrays import react as react
from .arrays import relative_mahalanobis as relative_mahalanobis
from .arrays import vim as vim
from .rows import SCORES as SCORES
from .rows import Rows as Rows
from .rows import StoredFit as StoredFit
from .rows import of_table as of_table
from .rows import read as read
from .rows import register_stored_score as register_stored_score
from .rows import scores_of as scores_of
from .table import Result as Result
from .table import frame as frame
from .table import group_of as group_of
from .table import load as load
from .table import markdown as markdown
from .table import result as result
from .table import sentence as sentence
from .table import table as table
from .table import to_table as to_table
