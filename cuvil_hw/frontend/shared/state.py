"""State that the user declares: pairs of an output and the input that receives it in the next call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cuvil_hw.contract.calling import KeptState
from cuvil_hw.errors import CuvilError
from cuvil_hw.ir.program import Program


def keep_state(program: Program, pairs: Mapping[str, str]) -> Program:
    """`program` with state. `pairs`: {input: output}, such as {"state": "stateN"}; the output becomes that input in the
    next call. State starts as zeros. Callers of the program no longer see the ports of a pair.

    Raises CuvilError for names that don't exist or are paired twice, and for pairs of different types.
    """
    if not isinstance(pairs, Mapping):
        raise CuvilError(f"state is a {type(pairs).__name__}, expected outputs by input, such as {{'state': 'stateN'}}")
    inputs, outputs = dict(program.given), dict(program.outputs)
    for input_name, output in pairs.items():
        for what, name, ports in (("input", input_name, inputs), ("output", output, outputs)):
            if name not in ports:
                raise CuvilError(f"state: {program.name} has no {what} {name!r}; it has {', '.join(ports)}")
        if inputs[input_name] != outputs[output]:
            types = f"{inputs[input_name]} and {outputs[output]}"
            raise CuvilError(f"state: input {input_name!r} and output {output!r} have different types: {types}")
    if len(set(pairs.values())) != len(pairs):
        raise CuvilError(f"state: an output is paired with two inputs: {dict(pairs)}")
    states = tuple(KeptState(i, o) for i, o in pairs.items())
    calling = replace(program.calling, states=(*program.calling.states, *states))
    if all(name in calling.kept_outputs for name in outputs):
        raise CuvilError("state: every output is state, so that a call would give nothing; leave one out")
    return replace(program, calling=calling)
