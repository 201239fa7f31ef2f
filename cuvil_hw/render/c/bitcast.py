"""The bits of a value as another type: what each language has for it, else a union."""

from __future__ import annotations

from xdsl.ir import Attribute

from cuvil_hw.render.c.lang import Lang
from cuvil_hw.render.c.scalar import PRIMARY, Code, cast, native_type, spelled


def bitcast(code: Code, source: Attribute, result: Attribute, lang: Lang, helpers: dict[str, str]) -> Code:
    """`code`, an exact value of `source`, as `result` of the same width; both are native types on the way. A helper
    function is added to `helpers`."""
    if source == result:
        return code
    have, want = native_type(source), native_type(result)
    given = code if code.type == have else cast(code, have, lang)
    before, after = spelled(have, lang), spelled(want, lang)
    if lang.bitcast:
        text = lang.bitcast.format(type=after, x=given.text)
    else:
        name = f"{after.removesuffix('_t')}_bits_of_{before.removesuffix('_t')}".replace(" ", "_").lstrip("_")
        union = f"union {{ {before} from; {after} to; }} bits; bits.from = x; return bits.to;"
        helpers[name] = f"{lang.helper} {after} {name}({before} x) {{ {union} }}"
        text = f"{name}({given.text})"
    return Code(text, PRIMARY, want, True, code.reads)


__all__ = ["bitcast"]
