"""Quotes outside text, such as names in a model or strings in a profile, as one word of another language.

One function per language. All outside text that is written passes through it, so that none can become syntax there.
"""

from __future__ import annotations

import re
import shlex
from xml.sax.saxutils import escape

# What moves a terminal's cursor, ends a line or turns the direction of what follows; halves of a character, too.
_CONTROL = "\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_UNSEEN = re.compile(f"[{_CONTROL}]")
_NO_XML = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TCL_SPECIAL = re.compile(r'[\\"$\[\]{};#\s]|[^\x20-\x7e]')
_MARKDOWN_SPECIAL = re.compile(r"[\\`*_{}\[\]<>()#+|~!&-]")


def visible(text: str, keep: str = "") -> str:
    """For a terminal or a log: control characters as Python writes them (\\x1b), all but those in `keep`."""
    return _UNSEEN.sub(lambda m: m[0] if m[0] in keep else ascii(m[0])[1:-1], text)


def lines(text: str) -> str:
    """`visible` of text of several lines."""
    return visible(text, "\n\t")


def tcl(text: str) -> str:
    """One word of a Tcl script, in quotes. Nothing in it is substituted."""
    return '"' + _TCL_SPECIAL.sub(_tcl_character, text) + '"'


def _tcl_character(match: re.Match[str]) -> str:
    code = ord(match[0])
    if match[0].isprintable() and code < 128 and match[0] != " ":
        return f"\\{match[0]}"
    return match[0] if match[0] == " " else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


def shell(text: str) -> str:
    """One word of a POSIX shell's command line."""
    return shlex.quote(text)


def make(text: str) -> str:
    """The value of a variable in a makefile. Line breaks, which no value can hold, become spaces."""
    plain = " ".join(text.replace("\0", "").splitlines())
    return plain.replace("$", "$$").replace("#", "\\#")


def xml(text: str) -> str:
    """Text or the value of an attribute in XML and HTML; characters that XML doesn't have become U+FFFD."""
    return escape(_NO_XML.sub("\ufffd", text), {'"': "&quot;", "'": "&#x27;"})


def markdown(text: str) -> str:
    """A piece of a line of Markdown."""
    return _MARKDOWN_SPECIAL.sub(lambda m: f"\\{m[0]}", visible(text))
