"""A C-family language as data. The walker (cfamily.py) holds no word of any one language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cuvil_hw import dtypes
from cuvil_hw.expr.scalar import SCALARS
from cuvil_hw.render.c.functions import OWN_F32

_C_KEYWORDS = (
    "auto break case char const continue default do double else enum extern float for goto if inline int long "
    "register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while "
    "bool true false NULL NAN INFINITY main"
)
C_KEYWORDS = frozenset(_C_KEYWORDS.split())
_CPP_KEYWORDS = (
    "alignas alignof and and_eq asm bitand bitor catch class compl constexpr const_cast decltype delete dynamic_cast "
    "explicit export friend mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected "
    "public reinterpret_cast static_assert static_cast template this thread_local throw try typeid typename using "
    "virtual wchar_t xor xor_eq std hls cuvil"
)
CPP_KEYWORDS = C_KEYWORDS | frozenset(_CPP_KEYWORDS.split())
# C library functions: a kernel or variable of that name would hide them or clash with their declaration.
_C_MATH_NAMES = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor fma "
    "fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf nan "
    "nearbyint nextafter pow remainder remquo rint round scalbln scalbn sin sinh sqrt tan tanh tgamma trunc"
)
_C_LIBRARY = (
    "abs j0 j1 jn y0 y1 yn gamma signbit isnan isinf isfinite div labs llabs exit abort atexit free malloc calloc "
    "realloc memcpy memmove memset memcmp memchr printf puts putchar getchar scanf remove rename rand srand signal "
    "raise sleep strlen strcpy strcat strcmp strchr strstr time clock index atoi atof atol strtol strtod getenv system "
    "qsort bsearch"
)
C_LIBRARY = frozenset(_C_LIBRARY.split()) | {f"{n}{t}" for n in _C_MATH_NAMES.split() for t in ("", "f", "l")}

# C99 name, for double, of each op of the math dialect, and of arith's IEEE-2008 ops: those that scalar operators lower
# to, and more that an adapter of its own may emit.
C_MATH: Mapping[str, str] = {
    **{row.real: row.c for row in SCALARS.values() if row.real and row.c and row.c.isidentifier()},
    "math.acos": "acos", "math.acosh": "acosh", "math.asin": "asin", "math.asinh": "asinh", "math.atan2": "atan2",
    "math.atanh": "atanh", "math.cbrt": "cbrt", "math.copysign": "copysign", "math.cosh": "cosh", "math.exp2": "exp2",
    "math.fma": "fma", "math.log10": "log10", "math.log2": "log2", "math.round": "round", "math.sinh": "sinh",
    "math.trunc": "trunc", "arith.maxnumf": "fmax", "arith.minnumf": "fmin",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lang:
    """Everything that the walker needs to know of a language.

    Templates are str.format strings; the names in braces are what they may use. A template that is "" prints
    nothing.

    Types and expressions:
        types: of variables, by the dtype that fills its container (`dtypes.spellings`).
        arbitrary, arbitrary_unsigned: types of any width whose operators widen; "" where there are only native
            types.
        cast: {type}, {x}. `cast_calls`: it is written like a call, so its operand needs no parentheses of its own.
        bitcast: the bits of {x} as {type}; "" where a union does it.
        math: names of functions; `math_f32` ({name}): how their float twin is called; `own_f32`: twins that are
            helpers (functions.py), by the name of the function for double.
        helpers: bodies of helper functions by op, in the place of those in operators.py.
        wide_suffix: of 64-bit literals.
        product: statements that compute {x} into a new {name} of {type}, by value of `cuvil.multiplier`.
        product_pair: statement that multiplies {low} and {high} by {shared} ({a}, {b} bits of the factors, {s} of a
            product), and how its two results are called.
        shifted_up: {x} times 2 to the {by}, in {bits} bits.
        inline: first line of a function that is part of its caller.
        wrap: signed overflow is undefined, so what may wrap is computed unsigned.
        vectors: definition of a type of several lanes ({name}, {type}, {bytes}) and of its twin for memory, {name}u,
            which lies as its lanes do ({lane} bytes); "" without such types.

    Functions and memories:
        linkage: what a function definition starts with, by `cuvil.role`.
        first_param: a parameter more, by role.
        pointer: a memory parameter ({const}, {type}, {name}, {size}).
        table: start of a constant table ({type}, {name}).
        spaces: how a memory of a space ("shared") is declared, by value of `cuvil.space`.
        bind: how a memory ({name}) is placed, by value of `cuvil.bind` ({kind} of memory); `placed`: what stands
            before its declaration, likewise.
        partition, reshape: of a memory's dimension ({name}, {dim} from 1).

    Loops:
        pipeline ({ii}), unroll: first line of a loop's body; with `hints_first`, the line before the loop.
        pipelined_functions: a function without a loop may be a pipeline, too, said by the same line.
        lanes: line before an unrolled loop of at least `vector_lanes` steps.
        independent: accesses of different iterations never meet; said once, or before each loop (`apart`).
        distance, apart_steps: likewise, they meet after {steps} iterations.

    Streams and ports:
        word: the type of a stream word ({type}, {lanes}); "" for plain arrays.
        word_type: definition of that type ({word}, {type}, {lanes}), whose lanes lie behind `word_lanes`.
        stream_*: streams. `global_stream` ({word}, {name}, {depth}, {words} of one sample): they are declared at
            file scope, and processes have no parameter for them.
        fifo: what the FIFO of a stream ({name}) is made of ({kind}).
        axis_*: ports of {bits} and what joins them to streams ({type}, {lanes}, {count}, {port}, {stream}).
        axis_word_*: likewise, where {count} elements are one word on both sides; "" where that is nothing special.
        axis_float: a float {type} at a port.
        port: a line per port of a design.
        dataflow: first line, line before the calls, a call ({name}, {call}), line after.

    Threads and machines:
        barrier: statement at which all threads of a block meet.
        calls: ops of one machine, by op name ({0}, {1}, … are operands, {dim} a dimension).
        word_load: four bytes from {0} on, as a word.
        copy: runs of elements ({target}, {source}, {bytes}, {source_space}, {target_space}, {several}).
        copy_segments: says that there are several runs ({source_stride}, {target_stride} in bytes, {more} runs).
        copy_spaces: how spaces are called there.
    """

    name: str
    types: Mapping[str, str]
    index: str
    boolean: str
    cast: str
    cast_calls: bool
    linkage: Mapping[str, str]
    pointer: str
    keywords: frozenset[str]
    preamble: str
    arbitrary: str = ""
    arbitrary_unsigned: str = ""
    saturate: str = ""
    helper: str = "static inline"
    table: str = "static const {type} {name}"
    math: Mapping[str, str] = field(default_factory=lambda: C_MATH)
    math_f32: str = "{name}f"
    word: str = ""
    stream_param: str = ""
    stream_local: str = ""
    fifo: str = ""
    product: Mapping[str, str] = field(default_factory=dict)
    product_pair: tuple[str, str, str] = ("", "", "")
    shifted_up: str = ""
    inline: str = ""
    stream_read: str = ""
    stream_write: str = ""
    axis_param: str = ""
    axis_read: str = ""
    axis_write: str = ""
    axis_word_read: str = ""
    axis_word_write: str = ""
    port: str = ""
    dataflow: tuple[str, str, str, str] = ("", "", "{call};", "")
    pipeline: str = ""
    pipelined_functions: bool = False
    unroll: str = ""
    lanes: str = ""
    vector_lanes: int = 8
    spaces: Mapping[str, str] = field(default_factory=dict)
    barrier: str = ""
    calls: Mapping[str, str] = field(default_factory=dict)
    word_load: str = ""
    copy: str = ""
    copy_segments: str = ""
    copy_spaces: Mapping[str, str] = field(default_factory=dict)
    wrap: bool = False
    bind: Mapping[str, str] = field(default_factory=dict)
    partition: str = ""
    reshape: str = ""
    independent: str = ""
    apart: str = ""
    distance: str = ""
    apart_steps: str = ""
    axis_float: str = ""
    global_stream: str = ""
    word_type: str = ""
    word_lanes: str = ""
    hints_first: bool = False
    placed: Mapping[str, str] = field(default_factory=dict)
    first_param: Mapping[str, str] = field(default_factory=dict)
    wide_suffix: str = "LL"
    bitcast: str = ""
    vectors: str = ""
    own_f32: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    helpers: Mapping[str, str] = field(default_factory=dict)

    def twin(self, name: str, helpers: dict[str, str]) -> str:
        """How the float twin of a function for double is called; one of our own is among `helpers` from now on."""
        if (own := self.own_f32.get(name)) is None:
            return self.math_f32.format(name=name)
        helpers.update(own)
        return list(own)[-1]


C99 = Lang(
    name="C99",
    types=dtypes.spellings("c"),
    index="int",
    boolean="bool",
    cast="({type}){x}",
    cast_calls=False,
    linkage={"kernel": "static void"},
    pointer="{const}{type} *restrict {name}",
    keywords=C_KEYWORDS | C_LIBRARY,
    preamble="#include <math.h>\n#include <stdbool.h>\n#include <stdint.h>\n",
    # Vectors of GCC and Clang: operators work lane by lane. Accumulators in them stay in registers, where loops over
    # arrays are left to the vectoriser, which goes through memory (measured: half the speed).
    vectors=(
        "typedef {type} {name} __attribute__((vector_size({bytes})));\n"
        "typedef {type} {name}u __attribute__((vector_size({bytes}), aligned({lane}), may_alias));"
    ),
    unroll="#pragma GCC unroll 16",
    hints_first=True,
    own_f32=OWN_F32,
    # Of the same values as the general ones: GCC vectorises a choice that is no disjunction.
    helpers={
        "arith.maximumf": "return !(a <= b) && b == b ? a : b;",
        "arith.minimumf": "return !(a >= b) && b == b ? a : b;",
    },
)

_MULTIPLY = "const {type} {name} = {x};\n#pragma HLS bind_op variable={name} op=mul impl="
_STORAGE = "#pragma HLS bind_storage variable={name} type={kind} impl="

HLS_CPP = Lang(
    name="HLS C++",
    types=dtypes.spellings("hls"),
    index="int",
    boolean="bool",
    cast="{type}({x})",
    cast_calls=True,
    linkage={"kernel": "static void", "process": "static void", "dataflow": "void"},
    pointer="{const}{type} {name}[{size}]",
    keywords=CPP_KEYWORDS | C_LIBRARY,
    preamble="#include <cstdint>\n\n#include <cuvil_hls_float.h>\n",
    arbitrary="ap_int<{}>",
    arbitrary_unsigned="ap_uint<{}>",
    saturate="cuvil::saturate<{type}, {layer}>({x})",
    math_f32="hls::{name}",
    word="cuvil::vec<{type}, {lanes}>",
    stream_param="hls::stream<{word}>& {name}",
    stream_local='hls::stream<{word}, {depth}> {name}("{name}");',
    fifo="#pragma HLS bind_storage variable={name} type=fifo impl={kind}",
    stream_read="{word} = {stream}.read();",
    stream_write="{stream}.write({word});",
    axis_param="hls::stream<ap_axiu<{bits}, 0, 0, 0> >& {name}",
    axis_read="cuvil::axis_to_stream<{bits}, {type}, {lanes}, {count}>({port}, {stream}{ends})",
    axis_write="cuvil::stream_to_axis<{bits}, {type}, {lanes}, {count}>({stream}, {port}{ends})",
    axis_word_read="cuvil::axis_word_to_stream<{bits}, {type}, {count}>({port}, {stream}{ends})",
    axis_word_write="cuvil::stream_to_axis_word<{bits}, {type}, {count}>({stream}, {port}{ends})",
    port="#pragma HLS interface axis port={name}",
    dataflow=("#pragma HLS dataflow", "CUVIL_DATAFLOW_BEGIN", "CUVIL_PROCESS({name}, {call})", "CUVIL_DATAFLOW_END"),
    product={"dsp": _MULTIPLY + "dsp", "lut": _MULTIPLY + "fabric"},
    product_pair=(
        "const cuvil::products<{s}> {name} = cuvil::multiply_pair<{a}, {b}, {s}>({shared}, {low}, {high});",
        "{name}.low",
        "{name}.high",
    ),
    shifted_up="cuvil::up<{bits}, {by}>({x})",
    inline="#pragma HLS inline",
    pipeline="#pragma HLS pipeline II={ii}",
    pipelined_functions=True,
    unroll="#pragma HLS unroll",
    lanes="CUVIL_LANES",
    bind={
        "registers": "#pragma HLS array_partition variable={name} complete dim=0",
        "lutram": _STORAGE + "lutram",
        "bram": _STORAGE + "bram",
        "uram": _STORAGE + "uram",
    },
    partition="#pragma HLS array_partition variable={name} complete dim={dim}",
    reshape="#pragma HLS array_reshape variable={name} complete dim={dim}",
    independent="#pragma HLS dependence variable={name} type=inter dependent=false",
    distance="#pragma HLS dependence variable={name} type=inter direction=RAW distance={steps} dependent=true",
    axis_float="cuvil::ieee<{type}>",
)
