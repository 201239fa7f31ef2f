"""`cuvil targets`: the built-in targets, and checks of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cuvil_hw.adapters.target_check import check_file
from cuvil_hw.cli.output import console, print_json, show_table
from cuvil_hw.report import words
from cuvil_hw.target.profile import Profile, builtin_profiles, load_profile

app = typer.Typer(help="List, show and check targets.", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("list")
def list_targets(json: Json = False) -> None:
    """List the targets that come with Cuvil."""
    profiles = builtin_profiles()
    if json:
        print_json({"targets": [to_json(p) for p in profiles]})
        return
    rows = [
        [p.name, ", ".join(p.aliases), p.adapter, p.part, f"{p.clock_hz / 1e6:g} MHz", p.description] for p in profiles
    ]
    show_table(["target", "also", "adapter", "part", "clock", "description"], rows)


@app.command("show")
def show_target(
    name: Annotated[str, typer.Argument(help="Name or alias of a target, or a .yaml file.", show_default=False)],
    json: Json = False,
) -> None:
    """Show the limits and settings of a target."""
    profile = load_profile(name)
    if json:
        print_json(to_json(profile))
        return
    out = console()
    out.print(profile.name, style="bold", markup=False)
    if profile.description:
        out.print(profile.description, markup=False, soft_wrap=True)
    facts = {
        "also called": ", ".join(profile.aliases),
        "adapter": profile.adapter,
        "part": profile.part,
        "board": profile.board,
        "clock": f"{profile.clock_hz / 1e6:g} MHz",
        "source": profile.origin,
        **{f"setting {key}": str(value) for key, value in profile.settings.items()},
    }
    for key, value in facts.items():
        if value:
            out.print(f"{key}: {value}", markup=False, soft_wrap=True)
    rows = [
        [a.name, words.count(a.limit), f"{a.utilisation:.0%}", words.count(a.budget), a.unit, a.rule]
        for a in profile.axes
    ]
    if rows:
        numeric = [False, True, True, True, False, False]
        show_table(["resource", "limit", "use", "budget", "unit", "rule"], rows, numeric)


@app.command("check")
def check_target(
    file: Annotated[Path, typer.Argument(help="A target profile (.yaml).", show_default=False)], json: Json = False
) -> None:
    """Check a target profile of your own: keys, values, adapter, and the resources that the adapter needs.

    Example: cuvil targets check my_board.yaml
    """
    profile = check_file(file)
    if json:
        print_json({"file": str(file), "valid": True, "target": to_json(profile)})
    else:
        console().print(f"{file}: valid, {profile.name} for adapter {profile.adapter}", markup=False, soft_wrap=True)


def to_json(profile: Profile) -> dict[str, Any]:
    """A profile for programs that read it."""
    return {
        "name": profile.name,
        "aliases": list(profile.aliases),
        "adapter": profile.adapter,
        "description": profile.description,
        "part": profile.part,
        "board": profile.board,
        "clock_hz": profile.clock_hz,
        "resources": {
            a.name: {"limit": a.limit, "use": a.utilisation, "budget": a.budget, "unit": a.unit, "rule": a.rule}
            for a in profile.axes
        },
        "settings": dict(profile.settings),
        "source": profile.origin,
    }
