"""`accelerate`: a copy of a model whose forward runs on a target; made for Hugging Face models."""

from __future__ import annotations

import functools
import os
import re
import types
from collections.abc import Callable
from typing import Any, TypeVar

from cuvil_hw.entry.saved_programs import SavedPrograms
from cuvil_hw.entry.torch_compile import backend
from cuvil_hw.errors import CuvilError, Refusal, ToolNotFound, Unsupported, needs_python, pip_install
from cuvil_hw.frontend.python.modules import branching, forward_of, trace_loops
from cuvil_hw.frontend.torch.errors import user_line
from cuvil_hw.frontend.torch.twin import twin_of
from cuvil_hw.runtime.executable import Executable

M = TypeVar("M")

# Counters of caches: numbers that change with every token. Dynamo keeps those open whose names match.
COUNTERS = r"L\[.*\.(cumulative_length\w*|_?seen_tokens)$"
_RAISED = re.compile(r"raised exception (.+)")  # in Dynamo's words
SIGNATURES = 256  # kinds of calls that one model is compiled for


def accelerate(
    model: M,
    target: Any = "cpu",
    precision: str | None = None,
    *,
    calibration: Any = None,
    interface: str | None = None,
    whole: bool = True,
    programs: str | os.PathLike[str] | None = None,
) -> M:
    """A copy of a torch module whose `forward` runs compiled on `target`; made for Hugging Face models.

    The copy shares parameters and buffers with `model`, which stays unchanged; it has its own modules, flags and hooks.
    It is an instance of the same class, with the same signature of `forward`, `config`, output classes, `eval`,
    `state_dict` and `generate`.

    The first call of each kind compiles. Two calls are of different kinds if they differ in the shapes or dtypes of
    tensors, in which arguments are given, or in the values of arguments that aren't tensors. If weights have changed
    since the last call, the next one compiles again. For inference only: a call in training mode raises CuvilError, and
    so does a backward pass through the results.

    `generate` works as before. Its default cache grows with every token, and each length is compiled separately; a
    cache of fixed size, `generate(…, cache_implementation="static")`, needs one program per prompt length and one for
    all later tokens (two if layers have a sliding window). No target has one program for several lengths: pad prompts
    to a few lengths, with `attention_mask`, as tokenizers do with `padding="max_length"` or `pad_to_multiple_of`.

    `accelerated.cuvil_programs` lists the compiled programs, newest last. `accelerated.save(path)` (`cuvil_save` if the
    model has its own `save`) writes the programs of all kinds of calls so far into one artifact; equal weights are
    stored once.

    Args:
        model: a torch module.
        target: as in `cuvil.compile`, and so are `precision`, `calibration` and `interface`.
        whole: True: forward must compile as one program. False: Dynamo may split it where Python decides on values; the
            code between the programs runs in Python.
        programs: path of a file written by `save`, for a process that has the same model. Calls are still traced there;
            a program is taken from the file if it was compiled by the same version from the same operations and weights
            for the same target, precision and calibration. Anything else is compiled, and the log "cuvil" says so. The
            file is verified and never unpickled, but it is still code that runs (docs/security.md).

    Raises:
        CuvilError: `model` is no torch module, or `programs` are for another target.
        ArtifactError: `programs` wasn't written by `save`.
        ToolNotFound: torch is not installed.

    The first call of each kind raises what `cuvil.compile` raises, mostly Unsupported with lines of the model's source.
    """
    needs_python("accelerate a model")
    try:
        import torch
    except ModuleNotFoundError as e:
        raise ToolNotFound("Python package torch", "accelerate a model", pip_install("torch")) from e
    if not isinstance(model, torch.nn.Module):
        kind = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise CuvilError(f"accelerate takes a torch module, such as a Hugging Face model; this is {kind}")
    original = type(model)
    if hasattr(original, "cuvil_programs"):
        raise CuvilError(f"this {original.__name__} is accelerated already; accelerate the model that it was made from")

    made: list[Executable] = []
    kept = SavedPrograms(original.__name__, target, calibration, programs)

    def save(self: Any, path: str | os.PathLike[str]) -> None:
        """Write the compiled programs into one file, for `accelerate(…, programs=path)`. Raises CuvilError."""
        kept.save(path)

    options = {
        "target": target,
        "precision": precision,
        "calibration": calibration,
        "interface": interface,
        "name": original.__name__,
        "done": made.append,
        "compiler": kept.compile,
    }
    namespace = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "forward": _forward(original, options, whole),
        "cuvil_programs": made,
        "cuvil_save" if hasattr(model, "save") else "save": save,
    }
    derived: Any = types.new_class(original.__name__, (original,), exec_body=lambda body: body.update(namespace))
    twin = twin_of(model, derived)
    trace_loops([m for m in twin.modules() if m is not twin])
    return twin  # type: ignore[no-any-return]


def _forward(original: type[Any], options: dict[str, Any], whole: bool) -> Callable[..., Any]:
    """A `forward` for a class derived from `original`. It is compiled as a function that takes the module, so that
    copies of an accelerated model use their own weights."""
    import torch
    from torch._dynamo import config, exc

    compiled = torch.compile(forward_of(original), backend=backend, fullgraph=whole, dynamic=False, options=options)
    sources: Any = torch.compiler.config
    # Beyond its limit Dynamo would run the model in PyTorch without a word.
    settings: Any = {
        "recompile_limit": SIGNATURES,
        "accumulated_recompile_limit": SIGNATURES,
        "fail_on_recompile_limit_hit": True,
        "allow_rnn": True,  # or Dynamo leaves recurrent layers to PyTorch
    }

    @functools.wraps(original.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # an outer torch.compile takes the model's own code
            return original.forward(self, *args, **kwargs)
        if self.training:
            raise CuvilError(
                f"{original.__name__} is in training mode, and it is compiled for inference; call .eval() first"
            )
        try:
            while True:
                try:
                    with config.patch(settings), sources.patch(dynamic_sources=_sources()):
                        return compiled(self, *args, **kwargs)  # type: ignore[no-untyped-call]
                except exc.TorchDynamoException as e:
                    inside = [m for m in self.modules() if m is not self]
                    kind = branching(e, inside)
                    if kind is None:
                        raise
                trace_loops(inside, (kind,))
        except exc.FailOnRecompileLimitHit as e:
            raise CuvilError(
                f"{original.__name__} was called in more than {SIGNATURES} ways, each of which is compiled for; "
                "pad inputs to a few sizes"
            ) from e
        except exc.TorchDynamoException as e:
            raise _explained(e, original.__name__) from e

    return forward


def _sources() -> str:
    """Which values Dynamo must not treat as constants (torch.compiler.config): the user's own setting, plus cache
    counters."""
    import torch

    given = str(torch.compiler.config.dynamic_sources)
    return f"{given},{COUNTERS}" if given else COUNTERS


def _explained(error: Exception, name: str) -> CuvilError:
    """Dynamo's reason without its hints, in one line, with the user's line where Dynamo knows it."""
    lines = [line for line in str(error).strip().split("\n\n")[0].splitlines() if not line.lstrip().startswith("Hint:")]
    text = " ".join(" ".join(lines).split())
    if "data-dependent" in text.lower():
        text += "; accelerate(…, whole=False) lets Python decide there, @cuvil.compile compiles both branches"
    elif raised := _RAISED.search(str(error)):
        text = (
            f"raises {raised[1].strip()} while it is traced; a model that doesn't in PyTorch asks whether it is being "
            "compiled, and makes less of its arguments itself then: give them, such as attention_mask"
        )
    elif "torch.nn.Parameter()" in text:
        text += "; convert weights before the model is accelerated: layer.to(dtype)"
    frames = [(f.filename, f.lineno or 0) for f in getattr(error, "real_stack", None) or ()]
    where = user_line(frames)
    return Unsupported([Refusal("forward", text, 1, (where,) if where else ())], name)


__all__ = ["accelerate"]
