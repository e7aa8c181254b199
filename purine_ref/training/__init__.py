"""Training on the embedded digits: stages of epochs of mini-batches, with snapshots that resume to the bit.

A classifier has one stage; an autoencoder has one for each layer, and one for the whole (stacked training). Every graph
of a run may be divided by a scheme, in this process or over hosts; a snapshot holds whole arrays by the serial graph's
names whatever the scheme, so a run may go on under another, or on another number of hosts.
"""

from purine_ref.training.settings import DEFAULTS, KEPT, Settings, Stage, require_scheme, stages
from purine_ref.training.state import Replicas
from purine_ref.training.trainer import Evaluation, Position, Step, Trainer

__all__ = [
    "DEFAULTS",
    "KEPT",
    "Evaluation",
    "Position",
    "Replicas",
    "Settings",
    "Stage",
    "Step",
    "Trainer",
    "require_scheme",
    "stages",
]
