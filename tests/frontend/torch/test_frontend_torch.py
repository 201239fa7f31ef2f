"""PyTorch front end as a whole: networks, names, source lines, refusals, errors, and what it leaves untouched."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xdsl")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from cuvil_hw.errors import CuvilError, Unsupported, pip_install  # noqa: E402
from cuvil_hw.frontend import load  # noqa: E402
from cuvil_hw.ir import level1  # noqa: E402
from cuvil_hw.ir.program import Program, evaluate, parse  # noqa: E402

HERE = Path(__file__).name


def line_of(text: str) -> str:
    """`file.py:12` of the only line of this file that ends in `# text`."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"# {text}")]
    return f"{HERE}:{number}"


def rand(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def agree(module: nn.Module, *inputs: Any, tolerance: float = 2e-5) -> Program:
    """Import in whatever mode the module is; the values are those of eval mode."""
    program = load(module, inputs)
    module.eval()
    with torch.no_grad():
        want = [v for v in torch.utils._pytree.tree_leaves(module(*inputs)) if v is not None]
    got = evaluate(program, [x.numpy() for x in inputs])
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w.numpy(), rtol=tolerance, atol=tolerance)
    return program


def settled(module: nn.Module) -> nn.Module:
    """Norms with statistics of their own, so that a swapped or forgotten one shows."""
    torch.manual_seed(1)
    for m in module.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(m.running_mean)
            nn.init.uniform_(m.running_var, 0.5, 2)
            nn.init.normal_(m.weight)
            nn.init.normal_(m.bias)
    return module


class Residual(nn.Module):
    """LeNet-like, with batch norm, a residual sum and a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 6, 5, padding=2, bias=False), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.branch = nn.Conv2d(6, 6, 3, padding="same")
        self.norm = nn.BatchNorm2d(6)
        self.side = nn.Conv2d(6, 4, 1, stride=2)
        self.pool = nn.MaxPool2d(2, ceil_mode=True)
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(10 * 7 * 7, 20), nn.Dropout(0.5), nn.ReLU(), nn.Linear(20, 10)
        )

    def forward(self, x: Any) -> Any:
        y = self.stem(x)
        y += self.norm(self.branch(y))  # residual sum
        y = torch.cat([self.pool(y), self.side(y)], 1)
        return self.head(F.avg_pool2d(y, 2)).log_softmax(-1)


class Separable(nn.Module):
    """Depthwise-separable blocks with squeeze and excitation, as in mobile networks."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.Hardswish()]
        for act in (nn.ReLU6(), nn.SiLU()):
            layers += [nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), act, nn.Conv2d(8, 8, 1)]
        self.features = nn.Sequential(*layers)
        self.excite = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 2, 1), nn.ReLU(), nn.Conv2d(2, 8, 1), nn.Hardsigmoid()
        )
        self.out = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        y = self.features(x)
        return self.out((y * self.excite(y)).mean((2, 3)))


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.low = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.up, self.out = nn.Conv2d(8, 4, 3, padding=1, padding_mode="reflect"), nn.Conv2d(4, 1, 1)

    def forward(self, x: Any) -> Any:
        top = F.leaky_relu(self.down(x))
        low = F.elu(self.low(F.max_pool2d(top, 2)))
        wide = F.interpolate(low, size=top.shape[2:], mode="bilinear", align_corners=False)
        near = F.interpolate(low, scale_factor=2)[..., : top.shape[2], : top.shape[3]]
        wide = wide + F.pad(near, (0, top.shape[3] - near.shape[3], 0, top.shape[2] - near.shape[2]))
        return torch.sigmoid(self.out(F.gelu(self.up(torch.cat([top, wide], 1)))))


def test_mlp_becomes_linear_ops_only() -> None:
    torch.manual_seed(0)
    program = agree(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)), rand(4, 6))
    kinds = [op.name.removeprefix(level1.PREFIX) for op in program.ops() if "const" not in op.name]
    assert kinds == ["linear", "relu", "linear", "func.return"]
    assert [str(t) for _, t in (*program.inputs, *program.outputs)] == ["4x6xf32", "4x3xf32"]


def test_networks_give_eager_numbers() -> None:
    torch.manual_seed(0)
    agree(settled(Residual()), rand(2, 1, 28, 28))
    agree(settled(Separable()), rand(2, 3, 17, 13))
    agree(
        settled(Separable()).to(memory_format=torch.channels_last),
        rand(1, 3, 9, 8).to(memory_format=torch.channels_last),
    )
    agree(Unet(), rand(1, 2, 13, 10))
    agree(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), rand(2, 5, 8))
    agree(nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, activation="gelu").requires_grad_(False), rand(5, 2, 8))
    agree(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).double(), rand(3, 4).double(), tolerance=1e-12)
    agree(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).half(), rand(3, 4).half(), tolerance=4e-3)


def test_batch_norm_and_activations_stay_whole() -> None:
    text = load(settled(Separable()), rand(1, 3, 9, 8)).text()
    for name in (
        "batch_norm",
        "hard_swish",
        "hard_sigmoid",
        "silu",
        "clamp",
        "reduce_mean",
        "avg_pool",
        "linear",
        "conv",
    ):
        assert f"level1.{name}" in text, name
    for name in ("where", "exp", 'sigmoid"', "mat_mul", "transpose"):
        assert f"level1.{name}" not in text, name


def test_the_program_prints_and_parses() -> None:
    program = load(Residual(), rand(1, 1, 28, 28))
    again = parse(program.text(), program.constants)
    x = rand(1, 1, 28, 28).numpy()
    np.testing.assert_array_equal(evaluate(again, [x])[0], evaluate(program, [x])[0])


def test_the_module_is_left_as_it_was() -> None:
    module = settled(Residual())
    module.train()
    module.branch.eval()
    flags = {name: m.training for name, m in module.named_modules()}
    before = {k: v.clone() for k, v in module.state_dict().items()}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(module, rand(2, 1, 28, 28))
    assert [str(w.message) for w in caught] == []
    assert {name: m.training for name, m in module.named_modules()} == flags
    assert flags["stem"]
    assert not flags["branch"]
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert all(p.requires_grad for p in module.parameters())


def test_training_flags_are_restored_after_a_failure() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Dropout())
    with pytest.raises(CuvilError):
        load(module, rand(2, 5))
    assert all(m.training for m in module.modules())


def test_eval_is_not_called() -> None:
    """Some adapters merge weights in an overridden train(); that must not happen behind the user's back."""

    class Merging(nn.Linear):
        def train(self, mode: bool = True) -> Any:
            if not mode:
                self.weight.data += 1
            return super().train(mode)

    module = Merging(3, 2)
    before = module.weight.detach().clone()
    load(module, rand(1, 3))
    assert torch.equal(module.weight, before)


def test_ops_carry_the_users_line() -> None:
    program = load(Residual(), rand(1, 1, 28, 28))
    places = [level1.loc_of(op) for op in program.ops() if op.name.endswith(".add")]
    assert [place.partition(" ")[0] for place in places] == [line_of("residual sum")]


def test_ops_carry_the_modules_path() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Linear(3, 4), nn.ReLU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(x) * 2.0  # the model's own

    program = load(Outer(), rand(1, 3))
    places = {op.name.rpartition(".")[2]: level1.loc_of(op) for op in program.ops() if not op.name.endswith("const")}
    line = line_of("the model's own")
    assert (places["linear"], places["relu"], places["mul"]) == (f"{line} first.0", f"{line} first.1", line)


def test_ops_of_plain_containers_carry_the_module_path() -> None:
    program = load(nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())), rand(1, 3))
    assert [level1.loc_of(op) for op in program.ops() if op.name.endswith(("linear", "relu"))] == ["0", "1.0", "1.1"]


def test_constants_carry_parameter_names_and_equal_ones_are_stored_once() -> None:
    layer = nn.Linear(3, 3)
    program = load(nn.Sequential(layer, nn.ReLU(), layer), rand(1, 3))
    assert len(program.constants) == 2
    names = {level1.loc_of(op) for op in program.ops() if op.name.endswith("const")}
    assert names in ({"0.weight", "0.bias"}, {"2.weight", "2.bias"})  # torch names a shared layer by either place


class Pair(NamedTuple):
    left: Any
    right: Any


class Tree(nn.Module):
    def forward(self, image: Any, mask: Any) -> Any:
        return {"sum": image + 1, "parts": [image * 2, (mask, None)], "pair": Pair(image - 1, torch.ones(2))}


def test_inputs_and_outputs_are_named_and_flattened() -> None:
    image, mask = rand(2, 3), rand(4) > 0
    program = agree(Tree(), image, mask)
    assert [n for n, _ in program.inputs] == ["image", "mask"]
    assert [n for n, _ in program.outputs] == ["sum", "parts.0", "parts.1.0", "pair.left", "pair.right"]
    assert program.inputs[1][1].dtype == "bool"

    class Two(nn.Module):
        def forward(self, x: Any) -> Any:
            return x, x.sum()

    assert [n for n, _ in load(Two(), rand(3)).outputs] == ["out0", "out1"]
    assert [n for n, _ in load(nn.ReLU(), rand(3)).outputs] == ["out0"]


def test_writes_into_the_input_come_after_the_outputs() -> None:
    class InPlace(nn.Module):
        def forward(self, x: Any) -> Any:
            x.mul_(2)
            x[:, 0] = 7
            x[1:, -2:] = x[0, :2]
            return x.relu_() + 1

    x = rand(2, 3)
    program = load(InPlace(), x)
    written = x.clone()
    for got, want in zip(evaluate(program, [x.numpy()]), (InPlace()(written), written), strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-6)
    assert [name for name, _ in program.outputs] == ["out0", "x.next"]


def test_an_exported_program_is_taken_as_it_is() -> None:
    module = settled(Residual()).eval()
    x = rand(1, 1, 28, 28)
    program = load(torch.export.export(module, (x,)))
    np.testing.assert_allclose(evaluate(program, [x.numpy()])[0], module(x).detach().numpy(), rtol=2e-5, atol=2e-5)


def test_an_exported_program_in_training_mode_says_so() -> None:
    exported = torch.export.export(
        nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Dropout()), (rand(2, 1, 3, 3),)
    )
    with pytest.raises(Unsupported, match=r"call model\.eval\(\) first"):
        load(exported)


def test_numpy_example_inputs() -> None:
    x = np.arange(6, dtype=np.float64).reshape(2, 3)[:, ::-1]
    x.setflags(write=False)
    assert str(load(nn.ReLU(), x).inputs[0][1]) == "2x3xf64"


class Refused(nn.Module):
    def forward(self, x: Any) -> Any:
        y = torch.special.i0(x)  # first
        y = y + torch.mode(y)[0].unsqueeze(-1)  # second
        z = torch.special.i0(y.cumsum(0) + 1)  # third
        return z + torch.native_layer_norm(y, [4], None, None, 0.1)[1]  # fourth


def test_all_refusals_come_at_once_with_lines() -> None:
    with pytest.raises(Unsupported) as caught:
        load(Refused(), rand(1, 2, 4, 4))
    found = {r.op: r for r in caught.value.refusals}
    assert set(found) == {"aten.i0.default", "aten.mode.default", "aten.native_layer_norm.default"}
    assert found["aten.i0.default"].count == 2
    assert found["aten.i0.default"].where == (line_of("first"), line_of("third"))
    assert found["aten.mode.default"].where == (line_of("second"),)
    assert "topk" in found["aten.mode.default"].reason
    assert "statistics" in found["aten.native_layer_norm.default"].reason
    assert str(caught.value).startswith("Refused: 3 unsupported")


def test_foreign_dtypes_are_refused() -> None:
    dtype, name = torch.complex64, "complex64"
    with pytest.raises(Unsupported, match=rf"input input.*{name} is not supported"):
        load(nn.Tanh(), torch.ones(2, dtype=dtype))

    class Inside(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.to(dtype) * 2  # an output

    with pytest.raises(Unsupported, match=f"{name} is not supported"):
        load(Inside(), torch.ones(2))
    with pytest.raises(Unsupported, match=f"{name} is not supported"):
        load(Inside(), torch.ones(2, dtype=dtype))


def test_randomness_is_refused_beside_state() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.count += 1  # counted
            return x + self.count + torch.rand(1)

    with pytest.raises(Unsupported, match=r"rand\.default ×1.*draws random numbers") as caught:
        load(Counter(), rand(2))
    assert len(caught.value.refusals) == 1


class Branches(nn.Module):
    def forward(self, x: Any) -> Any:
        if x.sum() > 0:
            return x
        return -x


def test_a_branch_that_depends_on_data_is_traced() -> None:
    for seed in range(4):  # sums of both signs
        agree(Branches(), rand(3, seed=seed))
    assert [n for n, _ in load(Branches(), rand(3)).inputs] == ["x"]


class ShapesByValue(nn.Module):
    def forward(self, x: Any) -> Any:
        if x.sum() > 0:
            return x
        return x[:2]  # shapes differ


def test_data_dependent_branch_names_the_users_line() -> None:
    with pytest.raises(CuvilError, match=r"can't trace ShapesByValue at .*same shape and dtype") as caught:
        load(ShapesByValue(), rand(3))
    assert line_of("shapes differ") in str(caught.value)
    assert len(str(caught.value)) < 600


class Mismatch(nn.Module):
    def forward(self, x: Any) -> Any:
        return x @ torch.ones(7, 2)  # mismatch


def test_an_error_of_the_forward_names_the_users_line() -> None:
    with pytest.raises(CuvilError, match=r"can't trace Mismatch.*(same|shapes)") as caught:
        load(Mismatch(), rand(3, 4))
    assert line_of("mismatch") in str(caught.value)


def test_dynamic_shapes_without_sizes_are_refused() -> None:
    exported = torch.export.export(nn.ReLU(), (rand(4, 3),), dynamic_shapes=({0: torch.export.Dim("n")},))
    with pytest.raises(CuvilError, match=r"symbolic sizes: input \(.*, 3\).*give example_inputs, or shapes="):
        load(exported)


def test_what_can_not_be_loaded() -> None:
    with pytest.raises(CuvilError, match=r"example inputs are needed.*torch\.randn"):
        load(nn.ReLU())
    with pytest.raises(CuvilError, match="ReLU is a class; give an instance"):
        load(nn.ReLU, rand(2))
    with pytest.raises(CuvilError, match=r"can't load a dict.*ExportedProgram.*\.onnx"):
        load({})
    with pytest.raises(CuvilError, match="holds weights"):
        load("model.pth")
    with pytest.raises(CuvilError, match=r"torch\.export\.load"):
        load("model.pt2")
    with pytest.raises(CuvilError, match="example input 0 is a object"):
        load(nn.ReLU(), (object(),))
    with pytest.raises(CuvilError, match="shapes is for ONNX"):
        load(nn.ReLU(), rand(2), shapes={"x": (2,)})
    with pytest.raises(CuvilError, match="meta device"):
        load(nn.Linear(2, 2, device="meta"), torch.ones(1, 2, device="meta"))


def test_no_framework_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys; from cuvil_hw.frontend import load\n"
        "from cuvil_hw.errors import CuvilError\n"
        "try: load(3)\nexcept CuvilError as e: print(e)\n"
        "print(sorted({'torch', 'onnx', 'xdsl'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "can't load a int" in done.stdout


def test_a_missing_framework_names_its_extra() -> None:
    code = (
        "import sys; sys.modules['onnx'] = None; from cuvil_hw.frontend import load\n"
        "from cuvil_hw.errors import ToolNotFound\n"
        "try: load('model.onnx')\nexcept ToolNotFound as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert pip_install("onnx") in done.stdout
