"""`cuvil keygen`, `cuvil sign` and `cuvil verify`: who an artifact is from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuvil_hw.cli.output import check_outputs, console, print_json

SignedBy = Annotated[
    list[Path] | None,
    typer.Option("--signed-by", help="A public key, .pub: refuse the program if none of those given signed it."),
]
MinRelease = Annotated[
    int, typer.Option(min=0, help="With --signed-by: refuse an older release than this.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def make_keys(
    name: Annotated[Path, typer.Argument(help="The files are NAME.key and NAME.pub.", show_default=False)],
    json: Json = False,
) -> None:
    """Make a pair of Ed25519 keys: NAME.key signs and stays secret, NAME.pub is for those who load.

    With CUVIL_KEY_PASSWORD in the environment, NAME.key is encrypted. Example: cuvil keygen release
    """
    from cuvil_hw.runtime.signing import make_keys
    from cuvil_hw.runtime.trust import name_of, public_keys

    private, public = make_keys(name)
    (key,) = public_keys(public)
    if json:
        print_json({"private": str(private), "public": str(public), "key": name_of(key)})
        return
    out = console()
    out.print(f"private: {private}\npublic: {public}\nkey: {name_of(key)}", markup=False, soft_wrap=True)


def sign(
    program: Annotated[Path, typer.Argument(help="A .cuvil file.", show_default=False)],
    key: Annotated[Path, typer.Option(help="The private key, NAME.key.", show_default=False)],
    release: Annotated[int, typer.Option(min=0, help="A number that grows with each version of the model.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write it.", show_default="the file itself")
    ] = None,
    json: Json = False,
) -> None:
    """Sign a compiled program. Signatures of other keys stay; one of the same key is replaced.

    Example: cuvil sign kws.cuvil --key release.key --release 7
    """
    from cuvil_hw.runtime import signing
    from cuvil_hw.runtime.trust import name_of

    check_outputs([output], [key, *([] if output is None else [program])])
    made = signing.sign(program, key, release=release, output=output)
    written = output or program
    if json:
        print_json({"artifact": str(written), "key": name_of(made.key), "release": made.release})
        return
    console().print(f"signed: {written}, release {made.release}, by {name_of(made.key)}", markup=False, soft_wrap=True)


def verify(
    program: Annotated[Path, typer.Argument(help="A .cuvil file.", show_default=False)],
    signed_by: Annotated[
        list[Path], typer.Option("--signed-by", help="A trusted public key, .pub; repeatable.", show_default=False)
    ],
    min_release: Annotated[int, typer.Option(min=0, help="Least release that is accepted.")] = 0,
    json: Json = False,
) -> None:
    """Check that a trusted key signed a program. Nothing of the program is parsed or run. Exit code 1: it is unsigned,
    changed, signed by others, or of an older release.

    Example: cuvil verify kws.cuvil --signed-by release.pub --min-release 7
    """
    from cuvil_hw.runtime import artifact
    from cuvil_hw.runtime.trust import check, name_of

    found = check(artifact.read_bytes(program), signed_by, min_release, str(program))
    if json:
        print_json({"artifact": str(program), "key": name_of(found.key), "release": found.release})
        return
    text = f"{program}: release {found.release}, signed by {name_of(found.key)}"
    console().print(text, markup=False, soft_wrap=True)
