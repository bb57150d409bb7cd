"""The HTML template of all reports: for a screen, a phone and paper."""

from __future__ import annotations

from html import escape

from brimful.language import tongue

STYLE = """
:root{color-scheme:light}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif;color:#1a1a1a}
body{background:#fff;max-width:1080px;margin:1.5rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin:0 0 1rem}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;margin-top:.4rem}
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid #ddd;font-variant-numeric:tabular-nums}
th:first-child,td:first-child{text-align:left}thead th{font-weight:600}tbody th{font-weight:400}
.note{color:#555;font-size:.9rem}
@media(max-width:500px){body{font-size:14px}th,td{padding:.2rem .25rem}}
@page{margin:15mm}
@media print{body{margin:0;padding:0;max-width:none;font-size:10pt}h2{break-after:avoid}
.wide{overflow:visible}tr,svg,figure,li{break-inside:avoid}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""


def document(title: str, body: str, *, style: str = "", script: str = "") -> str:
    code = f"<script>{script}</script>" if script else ""
    return (
        f'<!doctype html><html lang="{tongue().code}"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{STYLE}{style}</style>{code}</head><body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )
