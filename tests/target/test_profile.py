"""Profiles: built-ins against the published budgets, inheritance, and every kind of mistake in a file."""

from __future__ import annotations

import csv
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from cuvil_hw.errors import ProfileError
from cuvil_hw.target.profile import Profile, builtin_profiles, load_profile

ROOT = Path(__file__).resolve().parents[2]

GOOD = """\
schema: cuvil-profile/1
name: mine
adapter: zynq
clock_mhz: 100
resources:
  lut: {limit: 1000}
"""


def write(folder: Path, text: str | bytes, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_builtin_names_and_aliases_are_unique_and_match_the_file_name() -> None:
    profiles = builtin_profiles()
    words = [w for p in profiles for w in (p.name, *p.aliases)]
    assert len(words) == len(set(words))
    assert {p.name for p in profiles} == {p.source for p in profiles}
    assert {"pynq-z2", "kv260", "zcu104", "vmk180", "x86_64-linux-gnu", "aarch64-linux-gnu"} <= set(words)
    assert all(p.origin and p.description for p in profiles)


def test_fpga_limits_are_those_of_the_published_table() -> None:
    table = ROOT.parent / "shared" / "data" / "fpga" / "device_budgets.csv"
    if not table.is_file():
        pytest.skip("the table of device budgets is not here")
    rows = {r["device"]: r for r in csv.DictReader(table.read_text("utf-8").splitlines())}
    fpgas = [p for p in builtin_profiles() if p.part]
    assert {p.name for p in fpgas} >= {"pynq-z2", "kv260", "zcu104", "vmk180"}
    for profile in (p for p in fpgas if p.adapter == "zynq"):
        row = rows[profile.part.split("-")[0].removesuffix("clg400")]
        limits = {a.name: a.limit for a in profile.axes}
        assert limits == {
            "lut": float(row["LUT"]),
            "ff": float(row["FF"]),
            **({"lutram": float(row["LUTRAM_capable"])} if row["LUTRAM_capable"] else {}),
            "bram18": 2 * float(row["BRAM36"]),
            "uram": float(row["URAM"]),
            "dsp": float(row["DSP"]),
        }
        assert str(profile.settings["dsp"]).upper() == row["DSP_type"]


def test_alias_and_default_fill_targets() -> None:
    zynq = load_profile("zynq")
    assert zynq is load_profile("pynq-z2")
    assert load_profile(zynq) is zynq
    assert zynq.clock_hz == 100e6
    budgets = {a.name: (a.rule, a.budget, a.unit) for a in zynq.axes}
    assert budgets["lut"] == ("sum", 37240.0, "LUT")
    assert budgets["ff"] == ("sum", 53200.0, "FF")
    assert budgets["bram18"] == ("sum", 224.0, "BRAM18")


def test_cpu_is_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert load_profile("cpu").name == "aarch64-linux-gnu"
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")
    assert load_profile("cpu").name == "x86_64-linux-gnu"
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(ProfileError, match=r"no built-in profile for this machine .*riscv64"):
        load_profile("cpu")


def test_unknown_target_suggests() -> None:
    with pytest.raises(ProfileError, match=r"did you mean pynq-z2.*known: .*kv260"):
        load_profile("pynqz2")


def test_extends_changes_only_what_it_says(tmp_path: Path) -> None:
    text = """\
schema: cuvil-profile/1
name: half
extends: zynq
resources:
  bram18: {limit: 140}
  uram: null
  nram: {limit: 4096, rule: max, unit: B}
settings:
  host: null
  ports: [a, b]
"""
    base, half = load_profile("pynq-z2"), load_profile(str(write(tmp_path, text)))
    assert (half.name, half.aliases, half.part, half.adapter) == ("half", (), base.part, "zynq")
    assert half.axis("bram18").budget == 112.0
    assert half.axis("bram18").utilisation == 0.8
    assert half.axis("lut") == base.axis("lut")
    assert half.axis("nram").rule == "max"
    assert half.axis("nram").utilisation == 1.0
    assert "host" not in half.settings
    assert half.settings["ports"] == ("a", "b")
    with pytest.raises(ProfileError, match=r"resources.uram: no such resource.*it has: lut"):
        half.axis("uram")
    assert half.digest() != base.digest()


def test_extends_a_file_relative_to_the_extending_one(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path, GOOD)
    derived = write(tmp_path / "sub", "schema: cuvil-profile/1\nname: d\nextends: ../mine.yaml\nclock_mhz: 50\n")
    assert load_profile(derived).clock_hz == 50e6
    assert load_profile(derived).axis("lut").limit == 1000.0


def test_digest_ignores_prose_and_place_but_not_numbers(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    one = load_profile(write(tmp_path, GOOD))
    same = load_profile(write(tmp_path / "b", GOOD + "description: other words\nsource: elsewhere\naliases: [m]\n"))
    assert one.digest() == same.digest()
    assert hash(one) != hash(same)
    for change in (
        ("1000", "1001"),
        ("100\n", "101\n"),
        ("lut:", "ff:"),
        ("mine", "yours"),
        ("{limit", "{use: 0.5, limit"),
    ):
        assert load_profile(write(tmp_path, GOOD.replace(*change))).digest() != one.digest()


def test_settings_are_typed(tmp_path: Path) -> None:
    profile = load_profile(write(tmp_path, GOOD + "settings: {bits: 64, gain: 2, deep: true, word: x}\n"))
    assert profile.setting("bits", 8) == 64
    assert profile.setting("absent", 8) == 8
    assert isinstance(profile.setting("gain", 1.5), float)
    assert profile.setting("deep", False) is True
    with pytest.raises(ProfileError, match=r"settings.word: 'x' is str, expected int"):
        profile.setting("word", 1)
    with pytest.raises(ProfileError, match=r"settings.deep: True is bool, expected int"):
        profile.setting("deep", 1)
    with pytest.raises(ProfileError, match=r"settings.none: needed by adapter zynq"):
        profile.setting("none")


@pytest.mark.parametrize(
    ("text", "line", "key", "problem"),
    [
        (GOOD + "clock_mzh: 3\n", 7, "clock_mzh", "did you mean clock_mhz?"),
        (GOOD + "  ff: {limit: 5, lmit: 6}\n", 7, "resources.ff.lmit", "did you mean limit?"),
        (GOOD + "  lut: {limit: 5}\n", 7, "resources.lut", "given twice, first on line 6"),
        (GOOD + "name: again\n", 7, "name", "given twice, first on line 2"),
        (GOOD + "  ff: {limit: -5}\n", 7, "resources.ff.limit", "0 or more"),
        (GOOD + "  ff: {limit: .nan}\n", 7, "resources.ff.limit", "finite"),
        (GOOD + "  ff: {limit: 1" + "0" * 400 + "}\n", 7, "resources.ff.limit", "finite"),
        (GOOD + "  ff: {limit: 1e6}\n", 7, "resources.ff.limit", "write 1000000.0"),
        (GOOD + "  ff: {limit: true}\n", 7, "resources.ff.limit", "expected a number, found a truth value"),
        (GOOD + "  ff: 100\n", 7, "resources.ff", "write `ff: {limit: 100}`"),
        (GOOD + "  ff: {use: 0.5}\n", 7, "resources.ff.limit", "missing"),
        (GOOD + "  ff: {limit: 1, use: 0}\n", 7, "resources.ff.use", "above 0"),
        (GOOD + "  ff: {limit: 1, use: 1.01}\n", 7, "resources.ff.use", "at most 1"),
        (GOOD + "  ff: {limit: 1, rule: sun}\n", 7, "resources.ff.rule", "did you mean sum?"),
        (GOOD + "  brma18: {limit: 1}\n", 7, "resources.brma18.rule", "did you mean bram18?"),
        (GOOD + "  ff: null\n", 7, "resources.ff", "isn't inherited"),
        (GOOD + "settings: {a: null}\n", 7, "settings.a", "isn't inherited"),
        (GOOD + "settings: {a: {b: 1}}\n", 7, "settings.a", "expected text, a number"),
        (GOOD + "settings: {a: .inf}\n", 7, "settings.a", "finite"),
        (GOOD + "settings: [1]\n", 7, "settings", "expected a map, found a list"),
        (GOOD + "aliases: mine\n", 7, "aliases", "list of names"),
        (GOOD + "aliases: [1]\n", 7, "aliases", "list of names"),
        (GOOD + "part: 7020\n", 7, "part", "put it in quotes"),
        (GOOD + "part: [a]\n", 7, "part", "expected text, found a list"),
        (GOOD + "part: ''\n", 7, "part", "empty text"),
        (GOOD + "1: x\n", 7, "file", "a key must be text"),
        (GOOD + "extends: nowhere.yaml\n", 7, "extends", "no such file"),
        (GOOD + "extends: kv261\n", 7, "extends", "did you mean kv260"),
        (GOOD + "extends: mine.yaml\n", 7, "extends", "circular: mine.yaml → mine.yaml"),
        (GOOD.replace("100\n", "0\n"), 4, "clock_mhz", "above 0"),
        (GOOD.replace("mine", "my board"), 2, "name", "not a name"),
        (GOOD.replace("profile/1", "profile/2"), 1, "schema", "expected cuvil-profile/1"),
        (GOOD.replace("adapter: zynq\n", ""), None, "adapter", "missing"),
        (GOOD.replace("name: mine\n", ""), None, "name", "missing"),
        (GOOD.replace("schema: cuvil-profile/1\n", ""), None, "schema", "write `schema: cuvil-profile/1`"),
        (GOOD.replace("clock_mhz: 100\n", ""), None, "clock_mhz", "missing"),
        (GOOD + "---\nschema: 1\n", 7, "file", "not valid YAML"),
        (GOOD + "settings: {a: [}\n", 7, "file", "not valid YAML"),
        (GOOD + "settings: !!python/object/apply:os.system [ls]\n", 7, "settings", "expected a map"),
        (GOOD + "description: a\x07b\n", None, "file", "not valid YAML"),
        ("[" * 5000, None, "file", "nested too deeply"),
        ("- a\n", 1, "file", "found a list"),
        ("", None, "file", "empty"),
        ("# only a comment\n", None, "file", "empty"),
        (b"schema: x\nname: \xff\n", 2, "file", "not UTF-8"),
        (b" " * (1 << 20) + b"a: 1", None, "file", "larger than"),
    ],
)
def test_mistakes_cite_line_and_key(
    tmp_path: Path, text: str | bytes, line: int | None, key: str, problem: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    assert (caught.value.file, caught.value.line, caught.value.key) == (str(path), line, key)
    assert problem in caught.value.problem


def test_all_problems_of_a_file_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("limit: 1000", "limit: -1, use: 2") + "colour: red\n")
    with pytest.raises(ProfileError, match=r"2 more problem") as caught:
        load_profile(path)
    message = str(caught.value)
    for part in (f"{path}:6: resources.lut.limit", f"{path}:6: resources.lut.use", f"{path}:7: colour: unknown key"):
        assert part in message


def test_circle_of_two_and_error_in_the_base(tmp_path: Path) -> None:
    head = "schema: cuvil-profile/1\nname: x\n"
    write(tmp_path, head + "extends: b.yaml\n", "a.yaml")
    write(tmp_path, head + "extends: a.yaml\n", "b.yaml")
    with pytest.raises(ProfileError, match=r"circular: a.yaml → b.yaml → a.yaml"):
        load_profile(tmp_path / "a.yaml")
    write(tmp_path, head + "colour: red\n", "b.yaml")
    with pytest.raises(ProfileError, match=r"b\.yaml:3: colour"):
        load_profile(tmp_path / "a.yaml")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"no such file"):
        load_profile(str(tmp_path / "absent.yml"))
    (tmp_path / "dir.yaml").mkdir()
    with pytest.raises(ProfileError, match=r"cannot be read: Is a directory"):
        load_profile(tmp_path / "dir.yaml")


def test_profile_is_hashable_data() -> None:
    profile = load_profile("kv260")
    assert isinstance(profile, Profile)
    assert {profile: 1}[load_profile("kv260")] == 1


def test_importing_profiles_takes_only_the_standard_library() -> None:
    code = "import sys, cuvil_hw.target.profile; print(sorted({'yaml', 'xdsl', 'torch', 'ortools'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
