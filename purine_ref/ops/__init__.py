"""The operations, one module per family: shape rule, forward computation, gradient rule, cost, exactness.

Everything here is an `Operation` (see `purine_ref/operation.py`): a frozen value that knows no graph and holds no
array. Only `kernels` and arrays go through `compute`, so each is written once for every device.
"""

from __future__ import annotations

from purine_ref.ops.activation import ReLU, ReLUGradient, Sigmoid, SigmoidGradient, Tanh, TanhGradient
from purine_ref.ops.arithmetic import Mean, Mul, Scale, Sum, WeightedSum
from purine_ref.ops.convolution import Conv2d, Conv2dDataGradient, Conv2dWeightGradient
from purine_ref.ops.cross_entropy import SoftmaxCrossEntropy, SoftmaxCrossEntropyGradient
from purine_ref.ops.dropout import Dropout
from purine_ref.ops.fused import BiasReLU, BiasReLUGradient
from purine_ref.ops.global_pooling import GlobalAveragePool2d, GlobalAveragePool2dGradient
from purine_ref.ops.linear import Bias, BiasGradient, Linear, LinearDataGradient, LinearWeightGradient
from purine_ref.ops.loss import SquaredError, SquaredErrorGradient
from purine_ref.ops.metric import TopKAccuracy
from purine_ref.ops.normalization import LRN, LRNGradient
from purine_ref.ops.pooling import AveragePool2d, AveragePool2dGradient, MaxPool2d, MaxPool2dGradient
from purine_ref.ops.random import Bernoulli, Constant, Gaussian, Uniform
from purine_ref.ops.reduction import BroadcastTo, ReduceMean, ReduceSum
from purine_ref.ops.shape import Concat, Copy, Identity, PadSlice, Reshape, Slice, Split
from purine_ref.ops.softmax import LogSoftmax, LogSoftmaxGradient, Softmax, SoftmaxGradient
from purine_ref.ops.update import SGD, AdaGrad, TorchSGD

__all__ = [
    "LRN",
    "SGD",
    "AdaGrad",
    "AveragePool2d",
    "AveragePool2dGradient",
    "Bernoulli",
    "Bias",
    "BiasGradient",
    "BiasReLU",
    "BiasReLUGradient",
    "BroadcastTo",
    "Concat",
    "Constant",
    "Conv2d",
    "Conv2dDataGradient",
    "Conv2dWeightGradient",
    "Copy",
    "Dropout",
    "Gaussian",
    "GlobalAveragePool2d",
    "GlobalAveragePool2dGradient",
    "Identity",
    "LRNGradient",
    "Linear",
    "LinearDataGradient",
    "LinearWeightGradient",
    "LogSoftmax",
    "LogSoftmaxGradient",
    "MaxPool2d",
    "MaxPool2dGradient",
    "Mean",
    "Mul",
    "PadSlice",
    "ReLU",
    "ReLUGradient",
    "ReduceMean",
    "ReduceSum",
    "Reshape",
    "Scale",
    "Sigmoid",
    "SigmoidGradient",
    "Slice",
    "Softmax",
    "SoftmaxCrossEntropy",
    "SoftmaxCrossEntropyGradient",
    "SoftmaxGradient",
    "Split",
    "SquaredError",
    "SquaredErrorGradient",
    "Sum",
    "Tanh",
    "TanhGradient",
    "TopKAccuracy",
    "TorchSGD",
    "Uniform",
    "WeightedSum",
]
