"""The look of the HTML report: one style sheet, light and dark, that also prints and fits a phone."""

# How large the graph is drawn: what it says, and the width by --w, that of the drawing itself. Without a script.
ZOOMS = (
    ("fit", "min(100%,var(--w))"),
    ("50 %", "calc(.5*var(--w))"),
    ("100 %", "var(--w)"),
    ("200 %", "calc(2*var(--w))"),
)

CSS = """
:root{color-scheme:light dark;--ink:#18212c;--muted:#5a6673;--line:#d5dce4;--surface:#fff;--page:#f4f6f9;
--accent:#2f6db3;--mark:#c2500b;--b0:#2f6db3;--b1:#7aa5d4;--warn:#b3261e;--soft:#e9eef5}
@media (prefers-color-scheme:dark){:root{--ink:#e6ebf1;--muted:#9aa7b5;--line:#35414e;--surface:#171e26;--page:#0f141a;
--accent:#6aa9ec;--mark:#f0883e;--b0:#5b9be0;--b1:#33608f;--warn:#ff8a80;--soft:#202a35}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,"Segoe UI","DejaVu Sans",sans-serif}
main{max-width:1180px;margin:0 auto;padding:32px 20px 48px}
header{margin-bottom:20px}
h1{font-size:26px;line-height:1.2;margin:0 0 6px;overflow-wrap:anywhere}
h2{font-size:17px;margin:0 0 12px}
.sub{color:var(--muted);margin:0}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:14px;margin:0 0 16px}
.card,section{background:var(--surface);border:1px solid var(--line);border-radius:10px}
.card{padding:14px 16px}
.card b{display:block;font-size:24px;line-height:1.25;font-weight:650;overflow-wrap:anywhere}
.card .k{color:var(--muted);font-size:12.5px;display:block}
.card .o{color:var(--muted);font-size:12px;display:block;margin-top:2px}
section{padding:18px 18px 16px;margin:0 0 16px}
.scroll{overflow-x:auto}
.scroll:focus-visible{outline:2px solid var(--accent)}
table{border-collapse:collapse;width:100%;font-size:13.5px}
caption{text-align:left;color:var(--muted);padding-bottom:6px}
th,td{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600;color:var(--muted);font-size:12.5px;white-space:nowrap}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.c{font-family:ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;font-size:12px}
td.s{color:var(--muted);font-size:12.5px;min-width:14em;overflow-wrap:anywhere}
tr:last-child td{border-bottom:0}
tr.mark td:first-child{color:var(--mark);font-weight:650}
.bars{width:100%;min-width:820px;height:auto;display:block}
.bars text{font-family:inherit;font-size:12.5px;fill:var(--ink)}
.bars .m{fill:var(--muted)}
.bars .in{fill:#fff;font-size:11px}
.bars .track{fill:var(--soft)}
.bars .b0{fill:var(--b0)}.bars .b1{fill:var(--b1)}.bars .fix{fill:var(--muted)}.bars .hot{fill:var(--mark)}
.bars .cap{stroke:var(--ink);stroke-width:1.5}
.key{color:var(--muted);font-size:12.5px;margin:8px 0 0}
.key i{display:inline-block;width:11px;height:11px;border-radius:2px;margin:0 5px 0 12px;vertical-align:-1px}
.key i:first-child{margin-left:0}
ul{margin:0;padding-left:20px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 16px;margin:0;font-size:13.5px}
dt{font-weight:600}dd{margin:0;color:var(--muted)}
summary{cursor:pointer;font-weight:600}
.graph{max-height:85vh;overflow:auto}
.graph svg{display:block;margin:0 auto;height:auto}
.zoom>input{position:absolute;opacity:0}
.zoom>label{display:inline-block;padding:4px 12px;margin:0 6px 10px 0;border:1px solid var(--line);border-radius:14px;
cursor:pointer;font-size:12.5px;color:var(--muted)}
.zoom>input:checked+label{border-color:var(--accent);color:var(--ink)}
.zoom>input:focus-visible+label{outline:2px solid var(--accent)}
footer{color:var(--muted);font-size:12.5px;overflow-wrap:anywhere}
@media (max-width:560px){main{padding:16px 10px 32px}section{padding:14px 12px}h1{font-size:22px}
.cards{grid-template-columns:repeat(2,minmax(0,1fr));gap:8px}.card{padding:10px}.card b{font-size:18px}
dl{grid-template-columns:1fr}dd{margin-bottom:6px}.zoom>label{padding:7px 14px}}
@media print{body{background:#fff}main{max-width:none;padding:0}section,.card{break-inside:avoid;border-color:#bbb}
.scroll{overflow:visible}.bars{min-width:0}.zoom>label{display:none}.graph{break-before:page;max-height:none}}
""" + "".join(f"#zoom-{i}:checked~.graph svg{{width:{width}}}\n" for i, (_, width) in enumerate(ZOOMS))
