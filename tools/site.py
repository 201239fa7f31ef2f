"""The documentation as a site: every page of the project, with all links between them checked.

    python tools/site.py out/site      # build; status 1, with the pages and links, where a link or an anchor is dead

Pages lie where they lie in the project, so that links mean the same there, here and on a forge.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIG = """
site_name: cuvil-hw
site_description: From PyTorch and ONNX to FPGAs, GPUs, NPUs and processors
docs_dir: pages
site_dir: {site}
use_directory_urls: false
theme: {{name: readthedocs, highlightjs: false}}
markdown_extensions: [tables, fenced_code, toc, sane_lists]
nav:
{nav}
validation:
  nav: {{omitted_files: ignore}}
  links: {{not_found: warn, anchors: warn, unrecognized_links: ignore, absolute_links: warn}}
"""
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")


def pages(root: Path) -> list[Path]:
    """Markdown files that are tracked, but those of tests."""
    listed = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=root, capture_output=True, text=True, check=True)
    found = [Path(name) for name in listed.stdout.split("\0") if name]
    return [p for p in found if p.parts[0] not in ("tests", ".github") and (root / p).is_file()]


def dead(root: Path) -> list[str]:
    """Links to files and folders of the project that aren't there. MkDocs checks those between pages, and anchors."""
    faults = []
    for page in pages(root):
        prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", (root / page).read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        for link in LINK.findall(prose):
            if not (root / page.parent / link).exists():
                faults.append(f"{page}: link to {link}, which isn't there")
    return faults


def build(root: Path, site: Path) -> int:
    """The site of the pages below `root`; the exit status."""
    if faults := dead(root):
        print("\n".join(faults), file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="cuvil-site-") as folder:
        work = Path(folder)
        for page in pages(root):
            (work / "pages" / page).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / page, work / "pages" / page)
        names = sorted(p for p in pages(root) if p.parent == Path("docs") and p.name != "README.md")
        nav = [f"  - {p.stem}: {p.as_posix()}" for p in (Path("README.md"), *names, Path("CHANGELOG.md"))]
        (work / "mkdocs.yml").write_text(CONFIG.format(site=os.path.abspath(site), nav="\n".join(nav)), "utf-8")
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", work / "mkdocs.yml"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout + done.stderr, file=sys.stderr)
        return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, help="folder that the site is written to")
    parser.add_argument("--root", type=Path, default=ROOT, help="project whose pages are taken (this one)")
    given = parser.parse_args()
    return build(given.root.resolve(), given.site)


if __name__ == "__main__":
    sys.exit(main())
