"""Learning-rate schedules. In: an optimiser; then `step()` after each of its steps. Out: its learning rate, assigned.
Names and formulas are torch's. The step count is a tensor and the rate is computed from it on the device, so that
`step()` can be called inside a jitted function or outside of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.base.dtype import dtypes
from tilewright.base.errors import ShapeError
from tilewright.nn.optim.optimizer import Optimizer
from tilewright.tensor.tensor import Tensor


class LRScheduler:
    """A rate as a function of the number of steps and of the optimiser's initial rate."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        device = optimizer.device
        self.last_epoch = Tensor.empty((), dtype=dtypes.int32, device=device).assign(0)
        self.base_lrs = [_copy_of(rate) for rate in optimizer.rates]
        self.last_epoch.realize(*self.base_lrs)
        self._assign_rates()

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        """The learning rate after `count` steps (a float of one element)."""
        return base

    def step(self) -> None:
        """Counts one step and assigns the rate for the next."""
        self.last_epoch.assign(self.last_epoch + 1)
        self._assign_rates()

    def _assign_rates(self) -> None:
        rates = self.optimizer.rates
        for rate, base in zip(rates, self.base_lrs):
            count = self.last_epoch.to(rate.device).cast(rate.dtype)
            rate.assign(self.rate(count, base).cast(rate.dtype))
        self.last_epoch.realize(*rates)

    def get_last_lr(self) -> list[float]:
        """The present rates as numbers; they are read from the device."""
        return [float(rate.item()) for rate in self.optimizer.rates]


class ConstantLR(LRScheduler):
    """`factor` times the rate for `total_iters` steps, then the rate."""

    def __init__(self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5) -> None:
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        return (count < self.total_iters).where(base * self.factor, base)


class LinearLR(LRScheduler):
    """The rate times a factor that changes linearly from `start_factor` to `end_factor` over `total_iters` steps: a
    warmup."""

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0, total_iters: int = 5
    ) -> None:
        _check_count("LinearLR", "total_iters", total_iters)
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        done = (count / self.total_iters).minimum(1.0)
        return base * (done * (self.end_factor - self.start_factor) + self.start_factor)


class CosineAnnealingLR(LRScheduler):
    """Half a period of a cosine from the rate to `eta_min`, over `T_max` steps."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        _check_count("CosineAnnealingLR", "T_max", T_max)
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        return _cosine(base, self.eta_min, count / self.T_max)


class StepLR(LRScheduler):
    """The rate multiplied by `gamma` every `step_size` steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        _check_count("StepLR", "step_size", step_size)
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        # Adding half a step keeps the quotient of two integers away from the boundary where rounding could change its
        # floor.
        return base * _power(self.gamma, ((count + 0.5) / self.step_size).floor())


class MultiStepLR(LRScheduler):
    """The rate multiplied by `gamma` at each of the steps `milestones`."""

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1) -> None:
        self.milestones = sorted(milestones)
        self.gamma = gamma
        super().__init__(optimizer)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        for milestone in self.milestones:
            base = (count < milestone).where(base, base * self.gamma)
        return base


class PolynomialLR(LRScheduler):
    """The rate times (1 - steps / total_iters) ** power, 0 after `total_iters` steps."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0) -> None:
        _check_count("PolynomialLR", "total_iters", total_iters)
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        return base * (1 - (count / self.total_iters).minimum(1.0)) ** self.power


class LambdaLR(LRScheduler):
    """The rate times what a function gives for the number of steps, a tensor of one element. A function that asks for
    its value (`if count < 10`) cannot be called inside of a jitted step; `(count < 10).where(...)` can."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[Tensor], Tensor | float]) -> None:
        self.lr_lambda = lr_lambda
        super().__init__(optimizer)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        return base * self.lr_lambda(count)


class ExponentialLR(LRScheduler):
    """The rate multiplied by `gamma` at each step."""

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        self.gamma = gamma
        super().__init__(optimizer)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        return base * _power(self.gamma, count)


class OneCycleLR(LRScheduler):
    """From `max_lr / div_factor` up to `max_lr` during `pct_start` of the steps, then down to the first rate divided by
    `final_div_factor`. Momentum does not change. After `total_steps` the rate is constant."""

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float,
        total_steps: int,
        *,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
    ) -> None:
        _check_count("OneCycleLR", "total_steps", total_steps)
        if anneal_strategy not in ("cos", "linear") or not 0 <= pct_start <= 1:
            message = f"anneal_strategy={anneal_strategy!r}, pct_start={pct_start}"
            raise ShapeError("OneCycleLR", message, "give 'cos' or 'linear', and a fraction between 0 and 1")
        first = max_lr / div_factor
        last = first / final_div_factor
        rise = pct_start * total_steps - 1
        self.phases = [(0.0, rise, first, max_lr), (rise, total_steps - 1.0, max_lr, last)]
        if three_phase:
            self.phases[1:] = [(rise, 2 * rise, max_lr, first), (2 * rise, total_steps - 1.0, first, last)]
        self.anneal_strategy = anneal_strategy
        super().__init__(optimizer)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        found: Tensor | None = None
        for begin, end, first, last in reversed(self.phases):
            done = ((count - begin) / max(end - begin, 1e-9)).clamp(0.0, 1.0)
            rate = done * (last - first) + first if self.anneal_strategy == "linear" else _cosine(first, last, done)
            found = rate if found is None else (count <= end).where(rate, found)
        assert found is not None
        return found


class CyclicLR(LRScheduler):
    """From `base_lr` up to `max_lr` in `step_size_up` steps and down again, over and over. With "triangular2" each
    cycle rises half as far as the one before, with "exp_range" by `gamma` to the number of steps. Momentum does not
    change."""

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float,
        max_lr: float,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
    ) -> None:
        _check_count("CyclicLR", "step_size_up", step_size_up)
        _check_count("CyclicLR", "step_size_down", 1 if step_size_down is None else step_size_down)
        if mode not in ("triangular", "triangular2", "exp_range"):
            raise ShapeError("CyclicLR", f"mode={mode!r}", "give 'triangular', 'triangular2' or 'exp_range'")
        self.base_lr = base_lr
        self.max_lr = max_lr
        self.up = step_size_up
        self.down = step_size_up if step_size_down is None else step_size_down
        self.mode = mode
        self.gamma = gamma
        super().__init__(optimizer)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        cycle = ((count + 0.5) / (self.up + self.down)).floor()  # half a step as in StepLR
        position = count - cycle * (self.up + self.down)
        height = (position / self.up).minimum((self.up + self.down - position) / self.down)
        if self.mode == "triangular2":
            height = height * _power(0.5, cycle)
        elif self.mode == "exp_range":
            height = height * _power(self.gamma, count)
        return height * (self.max_lr - self.base_lr) + self.base_lr


class SequentialLR(LRScheduler):
    """One schedule after another: `schedulers[i]` is used until step `milestones[i]`, and each counts from 0. Make them
    with the same optimiser, and step only this one."""

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int]) -> None:
        if len(schedulers) != len(milestones) + 1 or list(milestones) != sorted(milestones):
            message = f"{len(schedulers)} schedules and milestones {list(milestones)}"
            raise ShapeError("SequentialLR", message, "give rising milestones, one fewer than schedules")
        self.schedulers = list(schedulers)
        self.milestones = list(milestones)
        # Each schedule has already assigned its first rate; the initial rate of all is that of the first one.
        for rate, base in zip(optimizer.rates, schedulers[0].base_lrs):
            rate.assign(base)
        super().__init__(optimizer)

    def rate(self, count: Tensor, base: Tensor) -> Tensor:
        found = self.schedulers[0].rate(count, base)
        for scheduler, milestone in zip(self.schedulers[1:], self.milestones):
            found = (count < milestone).where(found, scheduler.rate((count - milestone).maximum(0.0), base))
        return found


class ReduceLROnPlateau:
    """The rate multiplied by `factor` when a metric has not improved for more than `patience` steps. The metric may be
    a tensor; it is not read by the host."""

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs") or factor >= 1:
            message = f"mode={mode!r}, threshold_mode={threshold_mode!r}, factor={factor}"
            raise ShapeError("ReduceLROnPlateau", message, "'min' or 'max'; 'rel' or 'abs'; a factor below 1")
        self.optimizer = optimizer
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.min_lr = min_lr
        self.eps = eps
        device = optimizer.device
        self.best = Tensor.empty((), device=device).assign(math.inf if mode == "min" else -math.inf)
        self.num_bad_epochs = Tensor.empty((), dtype=dtypes.int32, device=device).assign(0)
        self.cooldown_counter = Tensor.empty((), dtype=dtypes.int32, device=device).assign(0)
        self.best.realize(self.num_bad_epochs, self.cooldown_counter)

    def step(self, metrics: Tensor | float) -> None:
        """Takes the metric of one epoch."""
        given = metrics if isinstance(metrics, Tensor) else Tensor(float(metrics), device=self.optimizer.device)
        metric = given.detach().to(self.optimizer.device).cast(self.best.dtype).reshape(())
        is_better = self._is_better(metric)
        bad = is_better.where(0, self.num_bad_epochs + 1)
        is_cooling = self.cooldown_counter > 0
        bad = is_cooling.where(0, bad)
        is_due = bad > self.patience
        rates = self.optimizer.rates
        for rate in rates:
            lower = (rate * self.factor).maximum(self.min_lr)
            rate.assign((is_due.to(rate.device) & (rate - lower > self.eps)).where(lower, rate))
        cooled = is_cooling.where(self.cooldown_counter - 1, self.cooldown_counter)
        self.best.assign(is_better.where(metric, self.best))
        self.num_bad_epochs.assign(is_due.where(0, bad).cast(dtypes.int32))
        self.cooldown_counter.assign(is_due.where(self.cooldown, cooled).cast(dtypes.int32))
        self.best.realize(self.num_bad_epochs, self.cooldown_counter, *rates)

    def _is_better(self, metric: Tensor) -> Tensor:
        sign = -1 if self.mode == "min" else 1
        if self.threshold_mode == "rel":
            edge = self.best * (1 + sign * self.threshold)
        else:
            edge = self.best + sign * self.threshold
        return metric < edge if self.mode == "min" else metric > edge


def _copy_of(rate: Tensor) -> Tensor:
    return Tensor.empty((), dtype=rate.dtype, device=rate.device).assign(rate.detach())


def _check_count(name: str, parameter: str, count: int) -> None:
    if count < 1:
        raise ShapeError(name, f"{parameter}={count}", "give at least 1")


def _cosine(first: Tensor | float, last: Tensor | float, done: Tensor) -> Tensor:
    """From first to last along half a period of a cosine, as `done` goes from 0 to 1."""
    share = ((done * math.pi).cos() + 1) * 0.5
    return share * (first - last) + last


def _power(base: float, exponent: Tensor) -> Tensor:
    return Tensor.full((), base, dtype=exponent.dtype, device=exponent.device).pow(exponent)
