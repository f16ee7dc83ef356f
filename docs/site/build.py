#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site: `python3 docs/site/build.py [FOLDER]`, by default build/site. Then open FOLDER/html/index.html,
or, as search needs a server, `python3 -m http.server --directory FOLDER/html`.

Pages are README.md, docs/ and whatever files these link to; the reference has every public entity of the headers, from their
comments. Needs mkdocs-material and doxygen (Debian: mkdocs-material doxygen). Any warning and any dead link or anchor is an error.
"""
import html
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

root = Path(__file__).resolve().parents[2]
out = Path(sys.argv[1] if len(sys.argv) > 1 else root / "build" / "site").resolve()
pages, site = out / "pages", out / "html"
chapters = [
    ("Start", ["README.md", "docs/tutorial.md", "docs/concepts.md", "docs/primitives.md", "docs/files.md"]),
    ("Planning", ["docs/recipes.md", "docs/planner.md", "docs/targets.md", "docs/parallel-pipelines.md", "docs/hetauto.md", "docs/placement.md", "docs/spmd.md", "docs/export.md", "docs/settings.md", "docs/speed-ups.md"]),
    ("Schedules and transfers", ["docs/schedules.md", "docs/reshard.md"]),
    ("Predictions", ["docs/prediction.md", "docs/accuracy.md", "docs/how-sure.md", "docs/devices.md"]),
    ("Running", ["docs/runtime.md", "docs/launching.md", "docs/cuda.md", "docs/hip.md", "docs/gpu-results.md", "docs/benchmarks.md"]),
    ("Contributing", ["CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"]),
]
languages = {".hpp": "cpp", ".cpp": "cpp", ".cu": "cpp", ".cuh": "cpp", ".py": "python", ".sh": "bash", ".json": "json"}


def page_of(path):
    """Where a file of the tree is on the site."""
    if path == "README.md":
        return "index.md"
    path = path.removeprefix("docs/")
    if path.endswith("/README.md"):
        return path.removesuffix("README.md") + "index.md"
    return path if Path(path).suffix in (".md", ".svg", ".png", ".csv") else path + ".md"


def add_pages():
    """README.md, docs/ and what they link to; links lead to pages."""
    waiting = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"]
    waiting += sorted(str(p.relative_to(root)) for p in (root / "docs").rglob("*") if p.suffix in (".md", ".svg", ".csv"))
    done = set()
    while waiting:
        path = waiting.pop()
        if path in done:
            continue
        done.add(path)
        to = pages / page_of(path)
        to.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith((".svg", ".png", ".csv")):
            shutil.copyfile(root / path, to)
            continue
        text = (root / path).read_text()
        if not path.endswith(".md"):
            fence = "~~~~" if "```" in text else "```"
            to.write_text(f"# {path}\n\n{fence}{languages.get(Path(path).suffix, 'text')}\n{text}\n{fence}\n")
            continue

        def relink(found):
            link, hash_, anchor = found[2].partition("#")
            if not link or "://" in link:
                return found[0]
            target = os.path.relpath((root / path).parent.resolve() / link, root)
            if (root / target).is_dir():
                target += "/README.md"
            if not (root / target).is_file():
                raise SystemExit(f"{path}: there is no {link}")
            waiting.append(target)
            return found[1] + os.path.relpath(pages / page_of(target), to.parent) + hash_ + anchor + found[3]

        parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
        parts[1::2] = [re.sub(r"^```(\w+) +(\S+)$", r'```\1 title="\2"', p, count=1, flags=re.M) for p in parts[1::2]]
        parts[::2] = [lists(re.sub(r"(\]\()([^)\s]+)(\))", relink, p)) for p in parts[::2]]
        to.write_text("".join(parts))


def lists(text):
    """Python's Markdown wants an empty line before a list, GitHub's does not."""
    return re.sub(r"(?m)^(?![ \t]*(?:[*-]|\d+\.) |\||$)(.*\S.*)\n(?=(?:[*-]|1\.) )", r"\1\n\n", text)


def comment(node):
    """A comment as Markdown; labelled lines become items."""
    if node is None:
        return ""
    paragraphs = []
    for p in node.iter("para"):
        text = " ".join("".join(p.itertext()).split())
        text = re.sub(r"(?<![\w`])((?:Requires|Returns|Throws|Complexity|Determinism|Source|Example):)", r"\n\n**\1**", text)
        paragraphs.append(text.replace("<", "&lt;")
                          .replace("[", "&#91;").replace("**", "\0").replace("*", "&#42;").replace("\0", "**").strip())
    return "\n\n".join(p for p in paragraphs if p)


def text_of(node):
    return "" if node is None else " ".join("".join(node.itertext()).split())


def signature(node):
    """Of a function, variable, alias or enumeration."""
    kind = node.get("kind")
    template = ", ".join(text_of(p.find("type")) + (" " + text_of(p.find("declname")) if p.find("declname") is not None else "") +
                         (" = " + text_of(p.find("defval")) if p.find("defval") is not None else "")
                         for p in node.findall("templateparamlist/param"))
    head = f"template <{template}>\n" if node.find("templateparamlist") is not None else ""
    if node.find("requiresclause") is not None:
        head += f"  requires {text_of(node.find('requiresclause'))}\n"
    if kind == "enum":
        values = [text_of(v.find("name")) + (" " + text_of(v.find("initializer")) if v.find("initializer") is not None else "")
                  for v in node.findall("enumvalue")]
        return f"enum class {text_of(node.find('name'))} {{ {', '.join(values)} }};"
    if kind == "typedef":
        return head + text_of(node.find("definition")) + ";"
    start = text_of(node.find("type")) + " " + text_of(node.find("name"))
    value = text_of(node.find("initializer"))
    return (head + start + text_of(node.find("argsstring")) + (" " + value if kind == "variable" and len(value) < 60 else "") + ";").strip()


def entity(title, code, about, level=3):
    title = title.replace("<", "&lt;").replace("*", "&#42;")
    return f"{'#' * level} {title}\n\n```cpp\n{code}\n```\n\n{about}\n\n"


def add_reference():
    """A page for each header that has public entities; returns their paths."""
    work = out / "doxygen"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    (work / "Doxyfile").write_text(
        f"INPUT={root}/include/hetsched\nSTRIP_FROM_PATH={root}/include\nOUTPUT_DIRECTORY={work}\nRECURSIVE=YES\n"
        "FILE_PATTERNS=*.hpp *.cuh\nGENERATE_XML=YES\nGENERATE_HTML=NO\nGENERATE_LATEX=NO\nEXTRACT_ALL=YES\nQUIET=YES\n"
        "WARN_IF_UNDOCUMENTED=NO\nWARN_IF_DOC_ERROR=NO\nMARKDOWN_SUPPORT=NO\nAUTOLINK_SUPPORT=NO\nEXCLUDE_SYMBOLS=*detail*\n"
        "XML_PROGRAMLISTING=NO\nHAVE_DOT=NO\nINCLUDE_GRAPH=NO\nINCLUDED_BY_GRAPH=NO\nEXTRACT_PRIVATE=NO\n")
    told = subprocess.run(["doxygen", work / "Doxyfile"], capture_output=True, text=True, cwd=work, check=True)
    warnings = [line for line in (told.stdout + told.stderr).splitlines() if "warning" in line or "error" in line]
    if warnings:
        raise SystemExit("\n".join(warnings))
    found = {}  # by header: (line, text)

    def add(node, text):
        where = node.find("location")
        if where is not None and where.get("file", "").endswith((".hpp", ".cuh")):
            file = where.get("file").removeprefix(f"{root}/include/")
            found.setdefault(file, []).append((int(where.get("line", 0)), text))

    def about(node):
        parts = [comment(node.find("briefdescription")), comment(node.find("detaileddescription"))]
        return "\n\n".join(p for p in parts if p)

    for file in sorted((work / "xml").glob("*.xml")):
        compound = xml.parse(file).getroot().find("compounddef")
        if compound is None:
            continue
        kind, name = compound.get("kind"), text_of(compound.find("compoundname"))
        short = name.removeprefix("hetsched::").replace("HETSCHED_VIEWS_KIND::", "")
        if kind == "namespace":
            for member in compound.iter("memberdef"):
                label = text_of(member.find("name"))
                if not label.startswith("@"):
                    add(member, entity(label, signature(member), about(member)))
        elif kind == "concept":
            add(compound, entity(short, text_of(compound.find("initializer")), about(compound)))
        elif kind in ("class", "struct", "union"):
            bases = ", ".join(b.get("prot") + " " + text_of(b) for b in compound.findall("basecompoundref"))
            code, notes = [f"{kind} {short}" + (f" : {bases}" if bases else "") + " {"], []
            for member in compound.iter("memberdef"):
                if member.get("prot") != "public" or member.get("kind") == "friend":
                    continue
                code.append("  " + signature(member).replace("\n", "\n  "))
                if told_of := about(member):
                    notes.append(f"* `{text_of(member.find('name'))}`: " + told_of.replace("\n\n", " "))
            add(compound, entity(short, "\n".join(code + ["};"]), about(compound) + "\n\n" + "\n".join(notes)))
    for header, entities in found.items():
        to = pages / "reference" / (header.removeprefix("hetsched/").replace("/", ".") + ".md")
        to.parent.mkdir(parents=True, exist_ok=True)
        unique = dict.fromkeys(text for _, text in sorted(entities))
        to.write_text(f"# {header}\n\n```cpp\n#include <{header}>\n```\n\n" + "".join(unique))
    rooms = {}
    for header in sorted(found):
        parts = header.removeprefix("hetsched/").split("/")
        rooms.setdefault(parts[0] if len(parts) > 1 else "front doors", []).append(header)
    count = sum(len(set(e)) for e in found.values())
    index = ["# Reference\n", f"{count} public entities in {len(found)} headers, by room. Search finds each by its name.\n"]
    for room, headers in rooms.items():
        index.append(f"## {room}\n")
        for header in headers:
            names = [re.match(r"#+ (.*)", t)[1] for t in dict.fromkeys(t for _, t in sorted(found[header]))]
            page = header.removeprefix("hetsched/").replace("/", ".") + ".md"
            index.append(f"* [`{header}`]({page}): " + ", ".join(dict.fromkeys(names)))
        index.append("")
    (pages / "reference" / "index.md").write_text("\n".join(index))
    return count


def configure():
    def item(path):
        title = re.match(r"#+ (.*)", (pages / page_of(path)).read_text())
        return f"    - {{{html.escape(title[1]).replace('hetsched', 'Overview', 1) if path == 'README.md' else title[1]!r}: {page_of(path)!r}}}"

    nav = []
    for chapter, paths in chapters:
        nav.append(f"  - {chapter!r}:")
        nav += [item(p) for p in paths if (root / p).is_file()]
    nav.append("  - Reference: reference/index.md")
    (out / "mkdocs.yml").write_text(
        f"""site_name: hetsched
docs_dir: {pages}
site_dir: {site}
use_directory_urls: false
nav:
{chr(10).join(nav)}
theme:
  name: material
  font: false
  features: [navigation.tabs, navigation.top, toc.integrate]
  palette:
    - {{media: "(prefers-color-scheme: light)", scheme: default, primary: teal, toggle: {{icon: material/weather-night, name: Dark}}}}
    - {{media: "(prefers-color-scheme: dark)", scheme: slate, primary: teal, toggle: {{icon: material/weather-sunny, name: Light}}}}
extra_css: [look.css]
plugins: [search]
markdown_extensions:
  - tables
  - fenced_code
  - toc: {{permalink: true, slugify: !!python/name:pymdownx.slugs.uslugify }}
  - pymdownx.highlight
  - pymdownx.superfences
""")
    shutil.copyfile(root / "docs" / "site" / "look.css", pages / "look.css")


class links_of(HTMLParser):
    """The anchors and links of a page."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids.update(v for v in (given.get("id"), given.get("name")) if v)
        self.links += [v for v in (given.get("href"), given.get("src")) if v]


def dead_links():
    parsed = {p: links_of(p.read_text()) for p in site.rglob("*.html")}
    for page, has in parsed.items():
        for link in has.links:
            target, anchor = urldefrag(unquote(link))
            if re.match(r"[a-z]+:|//", target) or page.name == "404.html":
                continue
            at = (page.parent / target).resolve() if target else page
            if at.is_dir():
                at /= "index.html"
            if not at.is_file() or (anchor and at in parsed and anchor not in parsed[at].ids and anchor != "__toc"):
                yield f"{page.relative_to(site)}: {link} leads nowhere"


shutil.rmtree(out, ignore_errors=True)
pages.mkdir(parents=True)
add_pages()
entities = add_reference()
configure()
told = subprocess.run(["mkdocs", "build", "--config-file", out / "mkdocs.yml"], capture_output=True, text=True)
wrong = [line for line in (told.stdout + told.stderr).splitlines() if "WARNING" in line or "ERROR" in line]
if told.returncode:
    raise SystemExit(told.stdout + told.stderr)
wrong += dead_links()
print("\n".join(wrong), end="\n" if wrong else "")
print(f"{len(list(site.rglob('*.html')))} pages, {entities} public entities: {site / 'index.html'}")
sys.exit(1 if wrong else 0)
