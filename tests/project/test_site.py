"""The documentation builds as a site, and a dead link fails it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.needs("mkdocs", "git"), pytest.mark.must_run]


def site(out: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "site.py"), str(out), "--root", str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_page_is_built_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    done = site(tmp_path / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "index.html").is_file()
    for page in (ROOT / "docs").glob("*.md"):
        built = tmp_path / "site" / "docs" / (page.stem + ".html")
        assert built.is_file() or page.name == "README.md", page.name


@pytest.mark.parametrize(
    ("link", "said"),
    [("docs/nowhere.md", "nowhere.md"), ("src/gone.py", "src/gone.py"), ("docs/page.md#no-such-part", "no-such-part")],
)
def test_a_dead_link_fails(tmp_path: Path, link: str, said: str) -> None:
    root = tmp_path / "project"
    (root / "docs").mkdir(parents=True)
    (root / "README.md").write_text("# Title\n\nSee [the page](docs/page.md) and [another](docs/page.md#a-part).\n")
    (root / "CHANGELOG.md").write_text("# Changelog\n")
    (root / "docs" / "page.md").write_text("# Page\n\n## A part\n\nText.\n")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)
    good = site(tmp_path / "good", root)
    assert good.returncode == 0, good.stdout + good.stderr
    (root / "README.md").write_text(f"# Title\n\nSee [the page]({link}).\n")
    bad = site(tmp_path / "bad", root)
    assert bad.returncode != 0
    assert said in bad.stdout + bad.stderr
