"""Parallel schemes: each is a graph made from a graph, by dividing operators into tasks and wiring the parts.

`compose(graph, [Data(2), Pipeline(2, 4)], places)` applies refiners, the outermost first.
"""

from purine_ref.parallel.composition import Composed, compose
from purine_ref.parallel.data import Data
from purine_ref.parallel.hybrid import Hybrid
from purine_ref.parallel.model import Model
from purine_ref.parallel.pieces import Piece
from purine_ref.parallel.pipeline import Pipeline, pipeline_ranks
from purine_ref.parallel.placed import Placed
from purine_ref.parallel.tasks import Network, Refiner, Task

__all__ = [
    "Composed",
    "Data",
    "Hybrid",
    "Model",
    "Network",
    "Piece",
    "Pipeline",
    "Placed",
    "Refiner",
    "Task",
    "compose",
    "pipeline_ranks",
]
