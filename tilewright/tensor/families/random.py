"""Random numbers. In: a seed and shapes. Out: lazy tensors of numbers that depend only on the seed and on earlier
draws, and are the same on every device. Element i of a draw is THREEFRY(offset + i, key). Key and offset are a small
tensor on each device, which a draw reads and then advances by assignment, so that a captured function draws new numbers
each time it is replayed."""

from __future__ import annotations

import math
from typing import Any, Self

from tilewright.base.config import options
from tilewright.base.dtype import DType, dtypes, to_dtype
from tilewright.base.errors import DTypeError, ShapeError
from tilewright.engine.memory import live
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Devices
from tilewright.graph.uop import UOp
from tilewright.runtime.device import canonical_device
from tilewright.tensor.core.base import TensorBase
from tilewright.tensor.core.checks import check_number, check_whole, is_whole, sizes_from
from tilewright.tensor.core.memory import keep_value
from tilewright.tensor.core.modes import modes
from tilewright.tensor.families.base import Family

_generators: dict[Devices, TensorBase] = {}
_seed: int | None = None

_MASK = (1 << 64) - 1


class RandomMixin(Family):
    """rand, randn, randint, ..., dropout."""

    # ------------------------------------------------------------ the generator

    @classmethod
    def manual_seed(cls, seed: int = 0) -> None:
        """Seeds the generator of every device."""
        global _seed
        if not is_whole(seed):
            raise DTypeError("manual_seed", f"the seed {seed!r}", "give a whole number")
        with live.exchanging:
            _seed = seed & _MASK
            for device, state in _generators.items():
                # The memory is kept and overwritten, so that a captured function sees the new seed.
                start = cls._state(device)
                assert isinstance(state, RandomMixin)
                state._forget_history()
                state._store((), start.uop)

    @classmethod
    def _state(cls, device: Devices) -> Self:
        """The initial key and offset."""
        seed = (options.SEED if _seed is None else _seed) & _MASK
        made = cls([seed, 0], device=device, dtype=dtypes.uint64)  # type: ignore[call-arg]
        assert isinstance(made, cls)
        return made

    @classmethod
    def _random_bits(cls, count: int, device: Devices) -> UOp:
        """`count` random uint64; the device's generator advances by that number."""
        key, offset = _words(cls._advance(count, device))
        return build.alu(Ops.THREEFRY, build.alu(Ops.ADD, build.iota(count, dtypes.uint64), offset), key)

    @classmethod
    def _advance(cls, count: int, device: Devices) -> UOp:
        """The state of the device's generator, which then advances by `count` numbers."""
        with live.exchanging:
            state = _generators.get(device)
            if state is None:
                state = _generators[device] = cls._state(device)
                live.register_library_state(state)
            assert isinstance(state, RandomMixin)
            state._forget_history()
            before = state.uop
            advanced = build.alu(Ops.ADD, _words(before)[1], build.const(dtypes.uint64, count))
            state._store(((Ops.SHRINK, ((1, 2),)),), build.reshape(advanced, (1,)))
            return before

    @classmethod
    def _drawn_state(cls, count: int, device: str) -> Self:
        """The key of the device's generator and its offset after `count` numbers, by which it advances: for a kernel
        that computes these numbers itself."""
        step = build.alu(Ops.MUL, build.iota(2, dtypes.uint64), build.const(dtypes.uint64, count, (2,)))
        return cls._from_uop(build.alu(Ops.ADD, cls._advance(count, device), step), device)._drawn()

    def _forget_history(self) -> None:
        """Replaces the node of a computed state by its buffer, so that graphs of earlier draws are freed."""
        held = self.uop.cache.get("realized")
        if isinstance(held, UOp):
            self.uop = build.reshape(held, self.shape)

    def _drawn(self) -> Self:
        """Random numbers, stored: the generator advances, and gradients need the same numbers again."""
        made = self.contiguous()
        keep_value(made.uop, made.device)
        return made

    # ------------------------------------------------------------ distributions

    @classmethod
    def rand(
        cls,
        *shape: Any,
        device: Devices | None = None,
        dtype: DType | str | None = None,
        contiguous: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """Uniform in [0, 1). With `contiguous=False` the numbers are recomputed where they are used."""
        sizes = sizes_from("rand", shape)
        wanted = dtypes.default_float if dtype is None else to_dtype(dtype)
        if not wanted.is_float:
            message = f"uniform numbers in [0, 1) of {wanted.name}"
            raise DTypeError("rand", message, "use randint for integers, or give a float dtype")
        device = canonical_device(device)
        count = math.prod(sizes)
        if count == 0:
            return cls.zeros(sizes, device=device, dtype=wanted, requires_grad=requires_grad)
        node = cls._uniform(cls._random_bits(count, device), wanted)
        made = cls._from_uop(build.reshape(node, sizes), device)
        made = made._drawn() if contiguous else made
        return made._told(requires_grad)

    @classmethod
    def _uniform(cls, bits: UOp, dtype: DType) -> UOp:
        """Random uint64 as numbers in [0, 1), of as many bits as the dtype represents exactly, so that none is rounded
        up to 1."""
        digits = dtype.mantissa_bits + 1
        high = build.alu(Ops.SHR, bits, build.const(dtypes.uint64, 64 - digits))
        whole = build.cast(build.cast(high, dtypes.int32 if digits < 32 else dtypes.int64), dtype)
        return build.alu(Ops.MUL, whole, build.const(dtype, 2.0**-digits))

    def rand_like(self, requires_grad: bool | None = None, **kwargs: Any) -> Self:
        """`rand` in the shape of this tensor, divided among devices as it is."""
        made = self.rand(*self.shape, **{"device": self.device, "dtype": self.dtype, **kwargs})
        return self._divided_alike(made, kwargs)._told(requires_grad)

    def _divided_alike(self, made: Self, kwargs: dict[str, Any]) -> Self:
        return made if "device" in kwargs or isinstance(self.device, str) else made.shard_like(self)

    @classmethod
    def randn(
        cls, *shape: Any, dtype: DType | str | None = None, requires_grad: bool | None = None, **kwargs: Any
    ) -> Self:
        """Standard normal, from pairs of uniform numbers (Box-Muller)."""
        sizes = sizes_from("randn", shape)
        wanted = dtypes.default_float if dtype is None else to_dtype(dtype)
        compute = wanted if wanted.bits >= 32 else dtypes.float32
        kwargs["contiguous"] = False
        # One draw for both, so that the generator is read and advanced once.
        both = cls.rand(2, *sizes, dtype=compute, **kwargs)
        radius, angle = (part.reshape(sizes) for part in both.split(1))
        # 1 - u lies in (0, 1], where the logarithm is finite.
        made = ((1 - radius).log() * -2).sqrt() * (angle * (2 * math.pi)).cos()
        made = made.cast(wanted)._drawn()
        return made._told(requires_grad)

    def randn_like(self, dtype: DType | str | None = None, requires_grad: bool | None = None, **kwargs: Any) -> Self:
        """`randn` in the shape of this tensor, divided among devices as it is."""
        made = self.randn(*self.shape, dtype=dtype or self.dtype, **{"device": self.device, **kwargs})
        return self._divided_alike(made, kwargs)._told(requires_grad)

    @classmethod
    def randint(
        cls,
        *shape: Any,
        low: int = 0,
        high: int = 10,
        dtype: DType | str = dtypes.int32,
        device: Devices | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Uniform integers in low..high-1."""
        sizes = sizes_from("randint", shape)
        wanted = to_dtype(dtype)
        if not wanted.is_int:
            raise DTypeError("randint", f"whole numbers of {wanted.name}", "give an integer dtype")
        if requires_grad:
            raise DTypeError("randint", "integers have no gradients", "leave requires_grad out")
        check_whole("randint", "low and high", low, high)
        if low >= high:
            raise ShapeError("randint", f"no number lies in {low}..{high - 1}", "give low < high")
        if not wanted.min <= low < high <= wanted.max + 1:
            message = f"{wanted.name} cannot represent {low}..{high - 1}"
            raise DTypeError("randint", message, "give a wider dtype, or numbers in its range")
        device = canonical_device(device)
        count = math.prod(sizes)
        if count == 0:
            return cls.zeros(sizes, device=device, dtype=wanted)
        bits = cls._random_bits(count, device)
        # The high bits of a product with the range are uniform to 2**-32, without a division.
        span = high - low
        if span <= 1 << 32:
            top = build.alu(Ops.SHR, bits, build.const(dtypes.uint64, 32))
            scaled = build.alu(Ops.MUL, top, build.const(dtypes.uint64, span))
            number = build.alu(Ops.SHR, scaled, build.const(dtypes.uint64, 32))
        else:
            number = build.alu(Ops.MOD, bits, build.const(dtypes.uint64, span))
        moved = build.alu(Ops.ADD, build.cast(number, dtypes.int64), build.const(dtypes.int64, low))
        return cls._from_uop(build.reshape(build.cast(moved, wanted), sizes), device).contiguous()

    def randint_like(self, low: int = 0, high: int = 10, **kwargs: Any) -> Self:
        """Uniform integers in low..high-1, of the shape, dtype and device of this tensor."""
        return self.randint(*self.shape, low=low, high=high, **{"device": self.device, "dtype": self.dtype, **kwargs})

    def bernoulli(self, p: float | None = None) -> Self:
        """1 with the probability given by each element, or with probability p, else 0."""
        chance = self if p is None else p
        dtype = self.dtype if self.dtype.is_float else dtypes.default_float
        return (self.rand(*self.shape, device=self.device, dtype=dtype) < chance).cast(self.dtype)

    @classmethod
    def uniform(
        cls,
        *shape: Any,
        low: float = 0.0,
        high: float = 1.0,
        dtype: DType | str | None = None,
        requires_grad: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """Uniform in [low, high); for an integer dtype rounded towards zero."""
        low, high = check_number("uniform", low), check_number("uniform", high)
        if not -math.inf < low <= high < math.inf:
            raise ShapeError("uniform", f"low={low}, high={high}", "give finite numbers, low no more than high")
        wanted = dtypes.default_float if dtype is None else to_dtype(dtype)
        compute = wanted if wanted.is_float else dtypes.default_float
        made = (cls.rand(*shape, dtype=compute, **kwargs) * (high - low) + low).cast(wanted)
        return made._told(requires_grad)

    @classmethod
    def normal(
        cls, *shape: Any, mean: float = 0.0, std: float = 1.0, requires_grad: bool | None = None, **kwargs: Any
    ) -> Self:
        """Normal with the given mean and standard deviation."""
        mean, std = check_number("normal", mean), check_number("normal", std)
        if not std >= 0:
            raise ShapeError("normal", f"std={std}", "give a number of at least 0")
        made = cls.randn(*shape, **kwargs) * std + mean
        return made._told(requires_grad)

    @classmethod
    def scaled_uniform(cls, *shape: Any, **kwargs: Any) -> Self:
        """Uniform in [-1, 1) over the root of the number of elements."""
        count = math.prod(sizes_from("scaled_uniform", shape))
        return cls.uniform(*shape, low=-1.0, high=1.0, **kwargs) * (1 / math.sqrt(max(count, 1)))

    @classmethod
    def glorot_uniform(cls, *shape: Any, **kwargs: Any) -> Self:
        """Uniform with bound sqrt(6 / (fan in + fan out))."""
        sizes = sizes_from("glorot_uniform", shape)
        if not sizes:
            raise ShapeError("glorot_uniform", "shape () has no fan in", "give at least one axis")
        bound = math.sqrt(6 / max(sizes[0] + math.prod(sizes[1:]), 1))
        return cls.uniform(*shape, low=-bound, high=bound, **kwargs)

    @classmethod
    def kaiming_uniform(cls, *shape: Any, a: float = 0.01, **kwargs: Any) -> Self:
        """Uniform with bound sqrt(6 / ((1 + a^2) fan in))."""
        sizes = sizes_from("kaiming_uniform", shape)
        bound = math.sqrt(3.0) * math.sqrt(2.0 / (1 + a**2)) / math.sqrt(max(math.prod(sizes[1:]), 1))
        return cls.uniform(*shape, low=-bound, high=bound, **kwargs)

    @classmethod
    def kaiming_normal(cls, *shape: Any, a: float = 0.01, **kwargs: Any) -> Self:
        """Normal with deviation sqrt(2 / ((1 + a^2) fan in))."""
        sizes = sizes_from("kaiming_normal", shape)
        std = math.sqrt(2.0 / (1 + a**2)) / math.sqrt(max(math.prod(sizes[1:]), 1))
        return cls.normal(*shape, mean=0.0, std=std, **kwargs)

    # ------------------------------------------------------------ dropout

    def dropout(self, p: float = 0.5) -> Self:
        """In training, elements become 0 with probability p and the others are scaled by 1/(1-p)."""
        if not 0 <= p <= 1:
            raise ShapeError("dropout", f"p={p} is not a probability", "give p in 0..1")
        if not modes.training or p == 0:
            return self
        if p == 1:
            # Every element is 0, and the gradient is 0 as well.
            return (self < -math.inf).where(self, 0)
        kept = self.rand(*self.shape, device=self.device, dtype=dtypes.float32, contiguous=False) >= p
        return kept._drawn().where(self * (1 / (1 - p)), 0)

    def _dropout_before(self, p: float, state: Self, shape: tuple[int, ...], first: int) -> Self:
        """`dropout` with the last random numbers before a state of the generator. They are for all elements of a
        shape, of which these are the rows from `first` on, and the first columns."""
        count = math.prod(shape)
        key, end = _words(state.uop)
        own = (*((0, size) for size in shape[:-2]), (first, first + self.shape[-2]), (0, self.shape[-1]))
        numbers = build.shrink(build.reshape(build.iota(count, dtypes.uint64), shape), own)
        counter = build.alu(Ops.ADD, numbers, build.alu(Ops.SUB, end, build.const(dtypes.uint64, count)))
        uniform = self._uniform(build.alu(Ops.THREEFRY, counter, key), dtypes.float32)
        return (self._new(uniform) >= p).where(self * (1 / (1 - p)), 0)


def _words(state: UOp) -> tuple[UOp, UOp]:
    """The key and the offset of a state."""
    key, offset = (build.reshape(build.shrink(state, (pair,)), ()) for pair in ((0, 1), (1, 2)))
    return key, offset
