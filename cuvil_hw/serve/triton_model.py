"""A model of Triton's Python backend that runs the program beside it. `cuvil export --triton` copies this file as
model.py; Triton's Python needs cuvil-hw (its base install)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as backend  # Triton's own, which is nowhere else

from cuvil_hw.errors import CuvilError
from cuvil_hw.runtime import vectors
from cuvil_hw.runtime.executable import Executable
from cuvil_hw.runtime.inputs import as_array
from cuvil_hw.runtime.load import load


class TritonPythonModel:
    """The name and the methods are Triton's."""

    def initialize(self, args: dict[str, str]) -> None:
        """Raises what keeps the model from being served: the program doesn't open, or its golden vectors fail."""
        place = Path(args["model_repository"]) / args["model_version"] / "model.cuvil"
        program = load(place)
        if not isinstance(program, Executable):
            raise CuvilError(f"{program.name}: has open shapes; export the program of one size")
        try:
            vectors.check_kept(program)
        except CuvilError:
            program.close()
            raise
        self._program = program
        self._batched = json.loads(args["model_config"])["max_batch_size"] > 0

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Requests that Triton hands over together run as one call; where that fails, each by itself."""
        names = [p.name for p in self._program.inputs]
        given = [[backend.get_input_tensor_by_name(r, n).as_numpy() for n in names] for r in requests]
        if self._batched and len(given) > 1:
            try:
                made = self._run([np.concatenate(column) for column in zip(*given, strict=True)])
            except (CuvilError, ValueError):
                pass  # one of them may be at fault; ValueError: shapes that don't go together
            else:
                ends = np.cumsum([len(arrays[0]) for arrays in given])[:-1]
                return [self._response(parts) for parts in zip(*(np.split(a, ends) for a in made), strict=True)]
        return [self._alone(arrays) for arrays in given]

    def finalize(self) -> None:
        self._program.close()

    def _alone(self, arrays: Sequence[Any]) -> Any:
        try:
            return self._response(self._run(arrays))
        except CuvilError as e:
            return backend.InferenceResponse(output_tensors=[], error=backend.TritonError(str(e)))

    def _run(self, arrays: Sequence[Any]) -> list[Any]:
        # Copies: a program may write into its inputs.
        inputs = {p.name: np.array(a) for p, a in zip(self._program.inputs, arrays, strict=True)}
        outputs = self._program.run(inputs).outputs
        return [as_array(a, p) for a, p in zip(outputs, self._program.outputs, strict=True)]

    def _response(self, arrays: Sequence[Any]) -> Any:
        named = zip(self._program.outputs, arrays, strict=True)
        return backend.InferenceResponse(output_tensors=[backend.Tensor(p.name, a) for p, a in named])
