"""Names of models and strings of profiles that are syntax elsewhere: every generated language still means what it
should, by its own tool."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper

import cuvil
from cuvil_hw import data
from cuvil_hw.adapters.zynq.shell import standard_hwh
from cuvil_hw.errors import CuvilError, Refusal, quoting
from cuvil_hw.frontend.onnx import load_onnx
from cuvil_hw.ir import graphviz
from cuvil_hw.runtime.artifact import SOURCES
from cuvil_hw.target.profile import load_profile

HOSTILE = (
    "plain", "", " ", "a b", "it's", 'say "x"', "$x", "${x}", "$(touch pwned)", "`touch pwned`", "[exec touch pwned]",
    "{", "}", "a{b", "}; exec touch pwned; {", "\\", "a\\", "\\\\", "\\n", "a\nb", "a\r\nb", "\t", "#c", "a#b", "%s",
    "a;b", "a&b", "<b>", "]]>", "<!--", "-->", "&amp;", "*", "~", "!x", "|", "\x1b[31m", "\x07", "\x9b31m", "\x7f",
    "\u202eevil", "\u2028", "é", "名", "'; touch pwned; '", "-rf", "--help", "@x", "$$", "$@", "a:b", "- x",
)  # fmt: skip

# Words of the languages, of their headers and of our own generated code; and texts that no identifier can be.
_WORDS = """
x int main file words wrong samples value word got n i near argc argv std hls cuvil ap_int ap_uint ap_axiu top stream
half float errno NULL EOF assert linux unix INT_MAX M_PI min max y0 j0 signal kernel __kernel global restrict bool
true _x __a 9 get_global_id sycl queue threadIdx blockIdx __global__ __nram__ taskId cl sizeof printf malloc exit time
index exp tanh _Float16 int8_t uint8_t size_t memcpy vec T N pipe channel cudaError float4 saturate ieee CUVIL_LANES
run in out acc patch c v i0 r0 samples_stream x_stream _exit main_1 class new nullptr constexpr inline asm typeof
register auto I complex _Complex isnan round log error count data begin end swap string uint ulong size offset layer
table barrier local constant read_only printf_ mem_fence wait event NAN INFINITY HUGE_VAL bits design golden
cudaStream_t dim3 warpSize clock tanf fmaf near_stream weights workspace parallel_for single_task handler buffer
accessor range id item memset abort
"""
NAMES = [
    *_WORDS.split(), "a b", "a\nb", "*/", "//", "\\", '"', "'", "$x", "`x`", "é", "名", "\x1b[31m", "??/", "%s",
    "#define", "a;b",
]  # fmt: skip
_FEW = """
file word i near argc std hls cuvil ap_int ap_axiu top stream errno EOF INT_MAX y0 kernel sycl queue int8_t pipe fmaf
abort x_stream handler id class
"""
FEW = [*_FEW.split(), "*/", "名"]  # a fabric has no room for so many ports


def hostile_model(names: Sequence[str]) -> onnx.ModelProto:
    """y_k = max(x_k, x_k+1); inputs, outputs and nodes carry the names."""
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT8, [1, 4]) for name in names]
    outputs = [helper.make_tensor_value_info(f"{name}'", TensorProto.INT8, [1, 4]) for name in names]
    nodes = [
        helper.make_node("Max", [name, names[(k + 1) % len(names)]], [f"{name}'"], name=name)
        for k, name in enumerate(names)
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])


@pytest.mark.parametrize("target", ["cpu", "h100/sim", "mlu370/sim", "agilex/sim-sycl"])
@pytest.mark.needs("gcc", "g++")
def test_names_of_ports_and_layers_in_every_language(target: str) -> None:
    name, _, interface = target.partition("/")
    names = FEW if name == "agilex" else NAMES
    program = cuvil.compile(hostile_model(names), name, interface=interface or None, name="stdint")
    draw = np.random.default_rng(0)
    given = [draw.integers(-128, 128, (1, 4)).astype(np.int8) for _ in names]
    for k, found in enumerate(program.run(*given).outputs):
        np.testing.assert_array_equal(found, np.maximum(given[k], given[(k + 1) % len(given)]))


# -- the HLS project, as the vendor's tools would compile it ----------------------------------------------------------


def project(folder: Path, model: onnx.ModelProto, name: str, **changes: str) -> Path:
    """The Zynq project of a model, written below `folder`."""
    program = cuvil.compile(model, replace(load_profile("pynq-z2"), **changes), name=name, interface="null")
    for path, content in program.artifact.files.items():
        if path.startswith(SOURCES):
            target = folder / path.removeprefix(SOURCES)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    return folder


def relu(floats: bool = False) -> onnx.ModelProto:
    kind = TensorProto.FLOAT if floats else TensorProto.INT8
    x, y = (helper.make_tensor_value_info(n, kind, [1, 8]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Max", ["x", "x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])


def csim(folder: Path, *flags: str) -> str:
    """C simulation by run_hls.tcl's own files and flags: what the testbench prints."""
    script = (folder / "run_hls.tcl").read_text()
    sources = [line.split()[1] for line in script.splitlines() if line.startswith("add_files src/")]
    argv = ["g++", "-std=c++14", "-w", "-Isrc", "-I", str(data.folder("sim") / "hls"), *flags]
    subprocess.run([*argv, *sources, "tb/testbench.cpp", "-o", "bench"], cwd=folder, check=True, timeout=300)
    done = subprocess.run(["./bench"], cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.needs("g++")
@pytest.mark.share(name=2)
@pytest.mark.parametrize("name", ["tables", "cuvil_hls", "stdint", "ap_int", "hls_stream", "src"])
def test_projects_called_like_headers_and_folders(tmp_path: Path, name: str) -> None:
    folder = project(tmp_path, relu(), name)
    assert "0 wrong" in csim(folder, "-O0")
    opened = next(w for w in (folder / "run_hls.tcl").read_text().split("\n") if w.startswith("open_project"))
    assert not (folder / opened.split()[-1]).exists()  # -reset empties that folder
    for header in (folder / "src").glob("*.h"):  # found instead of another header by -Isrc
        assert header.name.endswith("_top.h") or header.name in ("tables.h", "cuvil_hls.h", "cuvil_hls_float.h")


@pytest.mark.needs("g++")
def test_a_project_whose_ports_have_hostile_names(tmp_path: Path) -> None:
    folder = project(tmp_path, hostile_model(FEW), "main")
    assert f"{2 * len(FEW)} words compared, 0 wrong" in csim(folder, "-O0")


# -- one quoting function a language ----------------------------------------------------------------------------------


def run_tcl(folder: Path, script: str) -> list[str]:
    """The words that the script passes to `emit`, by Tcl itself: the command, or the library in Python."""
    (folder / "s.tcl").write_text(script, encoding="utf-8")
    emit = "proc emit {text} {global shown; lappend shown [binary encode hex [encoding convertto utf-8 $text]]}\n"
    main = f"set shown {{}}\n{emit}source -encoding utf-8 s.tcl\n"
    if shutil.which("tclsh"):
        (folder / "main.tcl").write_text(main + "puts [join $shown ,]", encoding="utf-8")
        done = subprocess.run(["tclsh", "main.tcl"], cwd=folder, capture_output=True, text=True, check=True, timeout=60)
        found = done.stdout.strip("\n")
    else:
        tkinter = pytest.importorskip("tkinter")
        here = os.getcwd()
        os.chdir(folder)
        try:
            found = tkinter.Tcl().eval(main + "join $shown ,")
        finally:
            os.chdir(here)
    return [bytes.fromhex(word).decode() for word in found.split(",")]


def test_tcl(tmp_path: Path) -> None:
    script = "\n".join(f"emit {quoting.tcl(text)}" for text in HOSTILE)
    assert run_tcl(tmp_path, script) == list(HOSTILE)
    assert os.listdir(tmp_path).count("pwned") == 0


@pytest.mark.needs("g++")
def test_the_projects_tcl_takes_a_profiles_strings_as_text(tmp_path: Path) -> None:
    part, board = "xc7z020clg400-1", "}; exec touch pwned; set z {[exec touch pwned]"
    folder = project(tmp_path, relu(), "net", part=part, board=board)
    stubs = "".join(
        f"proc {p} args {{}}\n"
        for p in ("open_project", "set_top", "add_files", "open_solution", "create_clock", "csim_design",
                  "csynth_design", "export_design")
    )  # fmt: skip
    design = (folder / "design.tcl").read_text()
    hls = (folder / "run_hls.tcl").read_text().replace("\nexit", "\n")
    script = f"{stubs}proc set_part p {{emit $p}}\n{design}\nemit $part\nemit $board\n{hls}"
    assert run_tcl(tmp_path, script) == [part, board, part]
    assert not (tmp_path / "pwned").exists()
    readme = (folder / "README.md").read_text().splitlines()[0]
    assert readme.startswith("# net: an HLS design for xc7z020")
    with pytest.raises(CuvilError, match=r"part: .* isn't a whole part name of a known family"):
        project(tmp_path, relu(), "other", part='xc7z020"; exec touch pwned; #$x[exec touch pwned]}')
    with pytest.raises(CuvilError, match="no standard shell"):
        standard_hwh((), (), "xc7z\x01", 1e8)


def test_a_profiles_strings_are_plain_lines(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    for text in ('"\\e[31m"', '"a\\nb"', '"\\u202ex"', '"\\0"'):
        path.write_text(f"schema: cuvil-profile/1\nname: p\nextends: cpu\npart: {text}\n")
        with pytest.raises(CuvilError, match=r"p\.yaml:4: part: control characters"):
            load_profile(path)


@pytest.mark.parametrize("text", ['!!int ""', '!!float ""', '!!int "x"', '!!bool "maybe"', '!!timestamp "x"'])
@pytest.mark.parametrize("line", ["clock_mhz: {}", "part: {}", "settings: {{a: {}}}", "resources: {{a: {{use: {}}}}}"])
def test_yaml_tags_that_contradict_their_values(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(f"schema: cuvil-profile/1\nname: p\nextends: cpu\n{line.format(text)}\n")
    with pytest.raises(CuvilError, match=r"p\.yaml:4"):
        load_profile(path)


def test_profiles_that_extend_each_other_600_deep(tmp_path: Path) -> None:
    for n in range(600):
        base = f"p{n + 1}.yaml" if n < 599 else "cpu"
        (tmp_path / f"p{n}.yaml").write_text(f"schema: cuvil-profile/1\nname: p{n}\nextends: {base}\n")
    with pytest.raises(CuvilError, match="more than 32 profiles deep"):
        load_profile(tmp_path / "p0.yaml")
    assert load_profile(tmp_path / "p580.yaml").adapter == "cpu"


def test_shell(tmp_path: Path) -> None:
    for shell in ("sh", "bash"):
        if shutil.which(shell):
            script = "printf '%s\\0' " + " ".join(map(quoting.shell, HOSTILE))
            done = subprocess.run([shell, "-c", script], cwd=tmp_path, capture_output=True, check=True, timeout=60)
            assert done.stdout.decode().split("\0")[:-1] == list(HOSTILE)
    assert os.listdir(tmp_path) == []


@pytest.mark.needs("make")
def test_make(tmp_path: Path) -> None:
    """A makefile's variable, handed to a recipe through the environment."""
    lines = [f"export V{n} := |{quoting.make(text)}|" for n, text in enumerate(HOSTILE)]
    recipe = "".join(f"\t@printf '%s\\0' \"$$V{n}\"\n" for n in range(len(HOSTILE)))
    (tmp_path / "Makefile").write_text("\n".join(lines) + f"\nall:\n{recipe}", encoding="utf-8")
    done = subprocess.run(["make", "-s"], cwd=tmp_path, capture_output=True, check=True, timeout=60)
    wanted = [f"|{' '.join(text.splitlines())}|" for text in HOSTILE]
    assert done.stdout.decode().split("\0")[:-1] == wanted
    assert os.listdir(tmp_path) == ["Makefile"]


def test_xml_and_html() -> None:
    for text in HOSTILE:
        parsed = ElementTree.fromstring(f'<a b="{quoting.xml(text)}">{quoting.xml(text)}</a>')
        wanted = text.replace("\x1b", "\ufffd").replace("\x07", "\ufffd").replace("\x7f", "\ufffd")
        wanted = wanted.replace("\x9b", "\ufffd")
        assert (parsed.text or "") == wanted.replace("\r\n", "\n")  # XML reads every line end as one


def test_drawings_of_hostile_models_are_xml_and_dot() -> None:
    program = load_onnx(hostile_model(NAMES))
    ElementTree.fromstring(graphviz.to_svg(program))
    dot = graphviz.to_dot(program)
    assert quoting.lines(dot) == dot


def test_json_of_the_command_line_is_yaml_too() -> None:
    """Each JSON text is YAML; both readers find the same."""
    text = json.dumps(list(HOSTILE))
    assert yaml.safe_load(text) == list(HOSTILE)


def test_markdown() -> None:
    for text in HOSTILE:
        made = quoting.markdown(text)
        assert "\n" not in made
        assert "<b>" not in made


# -- terminals --------------------------------------------------------------------------------------------------------

ESCAPES = "\x1b]0;title\x07\x1b[31m\x9b2Jred\u202e"


def escaping_model() -> onnx.ModelProto:
    x = helper.make_tensor_value_info(f"x{ESCAPES}", TensorProto.FLOAT, [1, 8])
    y = helper.make_tensor_value_info(f"y{ESCAPES}", TensorProto.FLOAT, [1, 8])
    nodes = [helper.make_node("Relu", [x.name], [y.name], name=f"n{ESCAPES}")]
    graph = helper.make_graph(nodes, f"g{ESCAPES}", [x], [y])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])


def test_names_control_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from cuvil_hw.cli.main import main

    path, artifact = tmp_path / "m.onnx", tmp_path / "m.cuvil"
    path.write_bytes(escaping_model().SerializeToString())
    unknown = escaping_model()
    unknown.graph.node[0].op_type = f"Foo{ESCAPES}"
    (tmp_path / "u.onnx").write_bytes(unknown.SerializeToString())
    np.save(tmp_path / "x.npy", np.zeros((1, 8), np.float32))
    commands = [
        ["check", str(path), "--layers"], ["check", str(path), "--json"], ["check", str(tmp_path / "u.onnx")],
        ["compile", str(path), "-t", "cpu", "-o", str(artifact), "--name", f"p{ESCAPES}"],
        ["compile", str(tmp_path / "u.onnx"), "-t", "cpu"], ["report", str(artifact)],
        ["report", str(artifact), "--json"],
        ["run", str(artifact), "-i", str(tmp_path / "x.npy")], ["run", str(artifact), "-i", f"q{ESCAPES}=x.npy"],
        ["opt", str(path)], ["compile", str(tmp_path / f"no{ESCAPES}.onnx"), "-t", f"t{ESCAPES}"],
    ]  # fmt: skip
    for command in commands:
        main(command)
        shown = "".join(capsys.readouterr())
        assert shown, command
        assert quoting.lines(shown) == shown, command
    program = cuvil.load(artifact)
    for shown in (repr(program), program.report.text()):
        assert quoting.lines(shown) == shown
    with pytest.raises(CuvilError) as error:
        program(**{f"z{ESCAPES}": 1})
    assert quoting.lines(str(error.value)) == str(error.value)


def test_messages_keep_their_lines_but_no_control_characters() -> None:
    assert str(CuvilError(f"a\nb{ESCAPES}")) == "a\nb\\x1b]0;title\\x07\\x1b[31m\\x9b2Jred\\u202e"
    assert str(Refusal("op\x1b", "why\x1b", 1, ("w\nv",))) == "op\\x1b ×1 at w\\nv: why\\x1b"
