"""The plain twins over elements: the ReLU, its gradient, and the updates of parameters, each in one pass.

All arrays of a call have one shape, and any memory order; an output may be one of the inputs. Python floats are rounded
to the arrays' dtype first. `loops.py` states what holds for all loops.
"""

from __future__ import annotations

import numpy as np

from purine_ref._fast.geometry import Array, quiet, require_alike


@quiet
def relu(x: Array, out: Array) -> None:
    """out = 0 where x <= 0, x elsewhere: a NaN passes, and -0.0 gives 0.0. Raises ValueError."""
    require_alike({"x": x}, {"out": out})
    out[...] = np.where(x <= 0, 0, x)


@quiet
def relu_gradient(dy: Array, y: Array, out: Array) -> None:
    """out = 0 where y <= 0, dy elsewhere. Raises ValueError."""
    require_alike({"dy": dy, "y": y}, {"out": out})
    out[...] = np.where(y <= 0, 0, dy)


@quiet
def momentum_update(
    weight: Array,
    gradient: Array,
    history: Array,
    rate: float,
    momentum: float,
    decay: float,
    new_weight: Array,
    new_history: Array,
) -> None:
    """SGD with momentum, the rate inside the history (Caffe).

    new_history = history momentum + (gradient + weight decay) rate; new_weight = weight - new_history. Raises
    ValueError.
    """
    arrays = {"weight": weight, "gradient": gradient, "history": history}
    require_alike(arrays, {"new_weight": new_weight, "new_history": new_history})
    moved = history * float(momentum) + (gradient + weight * float(decay)) * float(rate)
    new_weight[...] = weight - moved
    new_history[...] = moved


@quiet
def torch_update(
    weight: Array,
    gradient: Array,
    history: Array,
    rate: float,
    momentum: float,
    decay: float,
    new_weight: Array,
    new_history: Array,
) -> None:
    """SGD with momentum, the rate outside the history (torch.optim.SGD).

    new_history = history momentum + (gradient + weight decay); new_weight = weight - new_history rate. Raises
    ValueError.
    """
    arrays = {"weight": weight, "gradient": gradient, "history": history}
    require_alike(arrays, {"new_weight": new_weight, "new_history": new_history})
    moved = history * float(momentum) + (gradient + weight * float(decay))
    new_weight[...] = weight - moved * float(rate)
    new_history[...] = moved


@quiet
def adagrad_update(
    weight: Array,
    gradient: Array,
    squares: Array,
    rate: float,
    epsilon: float,
    decay: float,
    new_weight: Array,
    new_squares: Array,
) -> None:
    """AdaGrad (Duchi, Hazan and Singer, JMLR 12, 2011), with g = gradient + weight decay.

    new_squares = squares + g g; new_weight = weight - g rate / (sqrt(new_squares) + epsilon). Raises ValueError.
    """
    arrays = {"weight": weight, "gradient": gradient, "squares": squares}
    require_alike(arrays, {"new_weight": new_weight, "new_squares": new_squares})
    slope = gradient + weight * float(decay)
    grown = squares + slope * slope
    new_weight[...] = weight - slope * float(rate) / (np.sqrt(grown) + float(epsilon))
    new_squares[...] = grown
