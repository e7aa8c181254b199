"""Parallel schemes: each is a graph made from a graph, by dividing operators into tasks and wiring the parts.

`compose(graph, [Data(2), Pipeline(2, 4)], places)` applies refiners, the outermost first. `data`, `model`, `pipeline`
and `hybrid` are the usual schemes by one call.
"""

from purine_ref.parallel.composition import Composed, compose
from purine_ref.parallel.data import Data
from purine_ref.parallel.pieces import Piece
from purine_ref.parallel.tasks import Network, Refiner, Task

__all__ = ["Composed", "Data", "Network", "Piece", "Refiner", "Task", "compose"]
