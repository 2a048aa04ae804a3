"""The dialect that CUDA and HIP share: C++ for cards whose work-groups run in warps. In: a `Program`. Out: the spelling
of its launch, of local memory and of 16-byte vectors. It needs no header, which a run-time compiler may not find."""

from __future__ import annotations

import math
from typing import ClassVar

from tilewright.base.dtype import DType, dtypes
from tilewright.codegen.c_style.expressions import ATOM, SHIFT, UNARY, Expression
from tilewright.codegen.c_style.language import Language
from tilewright.codegen.c_style.launch import Launch
from tilewright.graph.ops import Ops
from tilewright.graph.records import Param, Program
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, memory_of

# More local memory than this is requested at the launch, and is one array without a size.
STATIC_LOCAL_BYTES = 48 << 10
DYNAMIC_LOCAL = "dynamic_shared"
LOCAL_ALIGNMENT = 16
_DIMENSIONS = "xyz"
_CPP_KEYWORDS = (
    "and asm catch class constexpr delete explicit export friend mutable namespace new not operator or private "
    "protected public template this throw try typeid typename using virtual xor"
)
# The exchange between threads of a warp takes words and double words.
_EXCHANGED = (dtypes.int32, dtypes.uint32, dtypes.int64, dtypes.uint64, dtypes.float32, dtypes.float64)

VECTOR = """\
template <typename T, int N> struct alignas(sizeof(T) * N) Vector {
  T elements[N];
  __device__ T operator[](int lane) const { return elements[lane]; }
};"""


class SimtLanguage(Language):
    keywords: ClassVar[frozenset[str]] = Language.keywords | frozenset(_CPP_KEYWORDS.split())
    helper_qualifier: ClassVar[str] = "__device__ inline"

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.local_places = place_locals(program)

    # ------------------------------------------------------------ the kernel around the body

    def prelude(self, program: Program) -> list[str]:
        if dynamic_local_bytes(program):
            return [f"extern __shared__ __align__({LOCAL_ALIGNMENT}) unsigned char {DYNAMIC_LOCAL}[];"]
        return []

    def signature(self, program: Program, launch: Launch, params: list[tuple[Param, str]]) -> list[str]:
        threads = math.prod(launch.group)
        arguments = ", ".join(self.arguments(program, params))
        name = self.kernel_name(program)
        return [f'extern "C" __global__ void __launch_bounds__({threads}) {name}({arguments}) {{']

    def group_index(self, dimension: int) -> str:
        return f"blockIdx.{_DIMENSIONS[dimension]}"

    def thread_index(self, dimension: int) -> str:
        return f"threadIdx.{_DIMENSIONS[dimension]}"

    def declare_local(self, name: str, dtype: DType, size: int) -> str:
        kind = self.memory_type(dtype)
        offset = self.local_places.get(name)
        if offset is None:
            return f"__shared__ __align__({LOCAL_ALIGNMENT}) {kind} {name}[{size}];"
        return f"{kind}* const {name} = ({kind}*)({DYNAMIC_LOCAL} + {offset});"

    def barrier(self) -> str:
        return "__syncthreads();"

    def exchange(self, value: str, distance: str) -> str:
        """The value of the thread whose number in its warp differs by the bits of `distance`."""
        raise NotImplementedError

    def warp_fold(self, op: Op, dtype: DType, width: int, value: Expression) -> Expression:
        """All threads of the warp take part: a fold is never inside a branch, and the group's size is a multiple of the
        warp's."""
        exchanged = self.type_name(dtype if dtype in _EXCHANGED else dtypes.int32)
        name = f"fold_{op.name.lower()}_{dtype.name}_{width}"
        kind = self.type_name(dtype)
        # The exchange is a separate statement: `x || y` evaluates y only where x is false, and every thread must take
        # part in it.
        received = f"const {kind} y = ({kind}){self.exchange(f'({exchanged})x', 'distance')};"
        folded = self.binary(op, dtype, Expression("x"), Expression("y")).text
        loop = f"for (int distance = {width // 2}; distance > 0; distance /= 2) {{ {received} x = {folded}; }}"
        self.helper(name, f"{kind} {name}({kind} x) {{\n  #pragma unroll\n  {loop}\n  return x;\n}}")
        return Expression(f"{name}({value.text})")

    def atomic(self, op: Op, dtype: DType, pointer: Expression, value: Expression) -> str:
        if op is Ops.ADD and dtype.is_int:  # on the bits: there is none for signed 64-bit integers
            dtype = dtypes.uint32 if dtype.itemsize == 4 else dtypes.uint64
        kind = {dtypes.int64: "long long", dtypes.uint64: "unsigned long long"}.get(dtype) or self.type_name(dtype)
        name = f"atomic{op.name.capitalize()}"
        return f"{name}(({kind}*){pointer.within(ATOM)}, ({kind}){value.within(UNARY)});"

    # ------------------------------------------------------------ vectors in memory

    def vector_type(self, dtype: DType, width: int) -> str:
        self.helpers.setdefault("Vector", VECTOR)
        return f"Vector<{self.memory_type(dtype)}, {width}>"

    def make_vector(self, dtype: DType, elements: list[str]) -> str:
        kind = self.memory_type(dtype)
        # A braced list may not narrow, so what C computes in int is cast to the element's type.
        given = [f"({kind})({element})" if dtype.bits < 32 else element for element in elements]
        return f"{self.vector_type(dtype, len(elements))}{{{', '.join(given)}}}"

    # ------------------------------------------------------------ operations

    def infinity(self, dtype: DType) -> Expression:
        if dtype is dtypes.float32:
            return Expression("__int_as_float(0x7f800000)")
        return Expression("__longlong_as_double(0x7ff0000000000000ll)")

    def nan(self, dtype: DType) -> Expression:
        if dtype is dtypes.float32:
            return Expression("__int_as_float(0x7fc00000)")
        return Expression("__longlong_as_double(0x7ff8000000000000ll)")

    def narrowed(self, dtype: DType, value: Expression) -> Expression:
        """NVRTC takes -(-32768) for 32768 although it is cast to short; shifted to the sign bit and back it wraps."""
        if dtype is dtypes.int16:
            value = Expression(f"(int)({value.within(SHIFT)} << 16) >> 16", SHIFT)
        return super().narrowed(dtype, value)

    def function(self, op: Op, dtype: DType) -> str:
        return super().function(op, dtype).removeprefix("__builtin_")


# ---------------------------------------------------------------- local memory


def local_memories(program: Program) -> list[UOp]:
    found = (memory_of(node) for node in program.body if node.op is Ops.INDEX)
    return list(dict.fromkeys(memory for memory in found if memory.op is Ops.DEFINE_LOCAL))


def dynamic_local_bytes(program: Program) -> int:
    """The bytes of local memory that the launch requests; 0 where the kernel declares all of it."""
    total = sum(_rounded(memory) for memory in local_memories(program))
    return total if total > STATIC_LOCAL_BYTES else 0


def place_locals(program: Program) -> dict[str, int]:
    """Where each local memory lies in the array without a size; empty where all are arrays of their own."""
    if not dynamic_local_bytes(program):
        return {}
    places: dict[str, int] = {}
    offset = 0
    for memory in local_memories(program):
        places[f"shared{memory.arg.slot}"] = offset
        offset += _rounded(memory)
    return places


def _rounded(memory: UOp) -> int:
    nbytes = int(memory.arg.size) * memory.dtype.itemsize
    return -(-nbytes // LOCAL_ALIGNMENT) * LOCAL_ALIGNMENT
