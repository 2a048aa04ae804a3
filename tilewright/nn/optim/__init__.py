"""Optimisers, learning-rate schedules, gradient clipping and loss scaling for mixed precision. In: parameters with
gradients. Out: parameters updated in place. Learning rates, momenta and counters are tensors, so that a jitted training
step can be replayed while they change."""

from tilewright.nn.optim.adaptive import LAMB, Adam, Adamax, AdamW, NAdam, RAdam
from tilewright.nn.optim.gradients import GradScaler, clip_grad_norm_, clip_grad_value_
from tilewright.nn.optim.momentum import LARS, SGD, Muon
from tilewright.nn.optim.optimizer import Optimizer, OptimizerGroup
from tilewright.nn.optim.schedules import (
    ConstantLR,
    CosineAnnealingLR,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from tilewright.nn.optim.squares import Adadelta, Adagrad, RMSprop
from tilewright.nn.optim.steps import ASGD, Rprop

__all__ = [
    "ASGD",
    "LAMB",
    "LARS",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "ConstantLR",
    "CosineAnnealingLR",
    "CyclicLR",
    "ExponentialLR",
    "GradScaler",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "Muon",
    "NAdam",
    "OneCycleLR",
    "Optimizer",
    "OptimizerGroup",
    "PolynomialLR",
    "RAdam",
    "RMSprop",
    "ReduceLROnPlateau",
    "Rprop",
    "SequentialLR",
    "StepLR",
    "clip_grad_norm_",
    "clip_grad_value_",
]
