"""purine_ref: the readable reference of bi-graph deep learning, after Purine (arXiv 1412.6249).

Build a `Graph` of blobs and operations, add gradients with `backward`, and run it with `Serial`, `Threaded`, or
`Simulated`. `ops` holds the operations, `layers` and `models` composite graphs, `optim` the updates, and
`conformance` the oracle.
"""

from purine_ref import conformance, data, layers, models, ops, optim, training, view
from purine_ref.errors import (
    CycleError,
    GraphError,
    OperatorError,
    PurineError,
    Refused,
    ResultDiffers,
    ShapeError,
)
from purine_ref.executors import Executor, Memory, Observer, Serial, Simulated, Threaded, simulate
from purine_ref.fusing import fuse
from purine_ref.gradients import backward
from purine_ref.graph import Blob, Graph, Op
from purine_ref.operation import Cost, Operation, RandomOperation
from purine_ref.plan import prepare
from purine_ref.schedule import Schedule, critical_path
from purine_ref.tensor import Location, Tensor
from purine_ref.traversal import prune, topological_order

__version__ = "0.1.0"

__all__ = [
    "Blob",
    "Cost",
    "CycleError",
    "Executor",
    "Graph",
    "GraphError",
    "Location",
    "Memory",
    "Observer",
    "Op",
    "Operation",
    "OperatorError",
    "PurineError",
    "RandomOperation",
    "Refused",
    "ResultDiffers",
    "Schedule",
    "Serial",
    "ShapeError",
    "Simulated",
    "Tensor",
    "Threaded",
    "__version__",
    "backward",
    "conformance",
    "critical_path",
    "data",
    "fuse",
    "layers",
    "models",
    "ops",
    "optim",
    "prepare",
    "prune",
    "simulate",
    "topological_order",
    "training",
    "view",
]
