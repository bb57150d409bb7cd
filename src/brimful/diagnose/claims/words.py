"""Which claims a line makes: found by what is the same in every language, and by words of four that are not.

Settings, names and numbers are translated by nobody. Where a word decides (off, never), the words of all four
languages are looked for, whatever the language is, in text without accents and capitals: people leave both
out. A line that turns a claim round ("not", "instead of", a question) is left alone: no judgement is better
than one about what nobody said.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_NOT = (
    r"\bno\b|\bnot\b|n'?t\b|\bdont\b|\bnever\b|\bsans\b|\bpas\b|\bsin\b|\bohne\b|\bnicht\b|\bkein|\bwithout\b"
)
_OFF = (
    r"\boff\b|disabl|remov|\bdrop|\bstop\b|avoid|\bskip|\bkill|get rid"
    r"|desactiv|\bcoupe|etein|enlev|retire|\bvire|\barret|\bevite|supprim"
    r"|\bapag|quita|deshabilit|deja de|elimin|\bevita"
    r"|deaktivier|(?:ab|aus)(?:zu|ge)?schalt|abstell|\baus\b|\bweg\b|\braus\b|verzicht|entfern|streich|(?:schalt|stell)\w*\b.{0,40}\bab\b"
)
_ON = r"turn\w* on|\benable|\bactiv(?:e|er|ez|a|ar)\b|einschalt|anschalt|\bkeep|garde|conserv|behalt|deja el"
_MORE = r"\bmore\b|\bplus\b|davantage|\bmas\b|\bmehr\b|\beats?\b|bouffe|come\b|frisst"
MEMORY = r"memor|memoire|speicher|vram"
_FAIL = (
    r"\bfail|crash|\booms?\b|out of memory|r[ua]n(?:ning|s)? out|plant|echou|echec|erreur|en panne"
    r"|\bfall[aeo]|\bcae\b|\bcaer|error|sin memoria|petar?\b"
    r"|st(?:u|ue)rz|fehl|scheiter|\bbr[ie]ch|abbruch|speicher.{0,25}\bvoll|speichermangel"
)
_NEVER = (
    r"\bnever\b|no more|ever again|any ?more|no longer|not (?:a single|one)|zero (?=crash|oom|fail|error)"
    r"|jamais|\bplus (?=jamais|d'|d |de |aucun)|\bfini\b|finis? les|aucun risque"
    r"|\bplus\b(?= .{0,12}(?:crash|oom))"
    r"|\bnunca|\bjamas|\bya no\b|no (?:\w+ )?v[uo]e?lv|se acab|adios a|cero (?=fallo|oom|error)"
    r"|\bnie\b|niemals|nicht mehr|\bkein\w* .{0,20}\bmehr\b|schluss mit"
    r"|(?:can'?t|cannot|won'?t|wont|will not)(?: \w+){0,3} (?=fail|crash|oom|run out|break)"
)
_SEEN = r"(?:never|jamais|nunca|\bnie)\b.{0,15}\b(?:seen|saw|heard|understood|vu|visto|gesehen)\b"
_ALWAYS = (
    r"\balways\b|every (?:single )?time|toujours|a tous les coups|a chaque fois|a coup sur|\bsiempre|cada vez"
    r"|a la primera|\bimmer\b|jedes mal"
)
_WORKS = (
    r"\bworks?\b|\bfits\b|\bruns\b|marche|fonctionne|\btient\b|\bpasse\b|\btourne\b|funciona\b|\bcabe\b|\bva\b"
    r"|lauft|laeuft|funktioniert|\bpasst\b|klappt|\bgeht\b"
)
_I = r"\b(?:i|we|you|je|j|nous|on|ich|wir|du|yo|nosotros)\b"
_SURE = (
    r"guarantee|bulletproof|fool-?proof|fail-?safe|100 ?% (?:safe|stable|sur\b|fiable|segur|sicher|stabil)"
    r"|garanti|infaillible|garantiz|infalible|a prueba de (?:fallos|errores|balas)|todsicher|ausfallsicher"
    r"|narrensicher|idiotensicher"
)
_NOT_SURE = rf"(?:{_NOT})\W+(?:\w+\W+){{0,2}}(?:guarant|garant)"
_FULL = r"\b9\d ?%|\b100 ?%|\bfull|plein|rempli|satur|llen|voll"
_WORK = (
    r"\bbusy|working|hard at work|fully used|well used|bien occup|travaille|bien exploit|a fond"
    r"|trabaja|a tope|aprovechad|a pleno|besch(?:a|ae)ftigt|arbeitet|ausgelastet|\bbosse"
)
_HALF = (
    r"\bf(?:p|loat)?_?16\b|half[- ]?precision|\.half\(|torch\.half|demi[- ]?precision|media precision"
    r"|halbe[rn]? (?:genau|pr(?:a|ae)z)"
)
_INSTEAD = (
    r"instead of|rather than|\bover\b|au lieu d|plutot que?|en vez de|en lugar de|anstatt|\bstatt\b|, not"
)
_BF16 = r"\bbf(?:loat)?_?16\b"
_SAVES = (
    r"\bsav(?:e|es|ing)\b|\bhelps?\b|economis|\baide|\bsert\b|ahorr|ayud|\bsirv|\bspar(?:t|en)\b|\bhilft\b"
)
_COST = (
    r"\bcosts?\b|\btime\b|slow|speed|\bcout|temps|ralenti|\bcoste|\bcuesta|tiempo|\blent"
    r"|\bkosten\b|\bzeit\b|langsam"
)
_FEW = r"\W+(?:\w+\W+){0,3}?"
# "saves no memory", "costs no time", "not busy": the claim turned round.
_DENIED = (
    rf"(?:{_NOT}){_FEW}(?:{_SAVES}|{_COST}|{_WORK})"
    rf"|(?:{_SAVES}|\bcosts?\b|kostet|coute|cuesta){_FEW}(?:{_NOT})"
)

# Claim -> every one of these in the line. A claim may stand here twice.
_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("compile_off", (r"\b(?:torch[._])?[ck]ompil", _MORE, MEMORY)),
    ("expandable_segments", (r"expandable_segments",)),
    ("checkpointing", (r"checkpointing|points? de controle|puntos? de control",)),
    ("adam8bit", (r"8[- ]?bits?\b.{0,30}(?:adam|optim)|(?:adam|optim)\w*.{0,30}8[- ]?bit|adamw?8bit",)),
    (
        "pad_vocabulary",
        (r"vo[ck]ab|50304|50257", r"\bpad|50304|multipl|vielfach|complet|rellen|auff(?:u|ue)ll"),
    ),
    (
        "smaller_model",
        (
            r"small|petit|redui|peque|menor|klein",
            r"model",
            r"big|larg|gr(?:os|and)|mayor|gross",
            r"\bbatch|\blote\b|\blot\b|stapel",
        ),
    ),
    ("memory_is_work", (MEMORY, _FULL, _WORK)),
)


def folded(line: str) -> str:
    """Small letters without accents: 'Größe' is 'grosse', 'mémoire' is 'memoire'."""
    plain = unicodedata.normalize("NFKD", line.casefold())
    return "".join(c for c in plain if not unicodedata.combining(c)).replace("’", "'")


def claims_in(line: str) -> list[str]:
    """The claims of one line, each once."""
    text = folded(line)
    return list(dict.fromkeys(_found(text)))


def settings_in(line: str) -> dict[str, str]:
    """What a line advises in words: the same as a line of a config would say."""
    text = folded(line)
    compiled = {"compile": "False"} if any(map(_says_compile_off, _clauses(text))) else {}
    half = {"dtype": "float16"} if any(map(_says_half, _clauses(text))) else {}
    return {**compiled, **half}


def _clauses(text: str) -> list[str]:
    """Parts in which one "not" turns one thing round; a question keeps its mark."""
    return re.split(r"[,;.!](?=\s)|(?<=\?)|\s(?:and|et|und|y|e)\s", text)


def _found(text: str) -> Iterator[str]:
    if any(map(_says_half, _clauses(text))):
        yield "fp16"
    if any(map(_says_compile_off, _clauses(text))):
        yield "compile_off"
    for claim, patterns in _SIGNS:
        if claim != "compile_off" and re.search(_DENIED, text):
            continue
        if all(re.search(pattern, text) for pattern in patterns):
            yield claim
    if any(map(_says_never, re.split(r"[.!](?=\s)|(?<=\?)", text))):
        yield "never_fails"


def _says_half(text: str) -> bool:
    """fp16 is recommended, or said to need less: not turned off, and not what bf16 should replace."""
    half = re.search(_HALF, text)
    if half is None or "?" in text:
        return False
    turned_round = re.search(rf"{_BF16}.{{0,30}}(?:{_INSTEAD})\W.{{0,12}}(?:{_HALF})", text)
    denied = re.search(rf"(?:{_NOT}|{_OFF}|avoid).{{0,15}}(?:{_HALF})", text)
    off = re.search(rf"(?:{_HALF})['\"`]?\s*[=:]\s*(?:false|0|off|no)\b", text)
    useless = re.search(rf"(?:{_HALF})\S* (?:\w+ ){{0,2}}(?:{_NOT})", text)
    return not (turned_round or denied or off or useless)


def _says_compile_off(text: str) -> bool:
    """One word that turns it off; two of them ("do not disable") are none."""
    if re.search(r"compile\w*['\"`]?(?:\s*[=:]\s*| (?:\w+ ){0,3})['\"`]?(?:false|0|off)\b", text):
        return "?" not in text and not re.search(rf"(?:{_NOT}) (?:\w+ ){{0,3}}(?:torch[._])?compile", text)
    if not re.search(r"\b(?:torch[._])?[ck]ompil", text) or "?" in text:
        return False
    if re.search(r"compile\w*\s*[=:]\s*['\"]?(?:true|1|on)\b", text) or re.search(_ON, text):
        return False
    return bool(re.search(_NOT, text)) != bool(re.search(_OFF, text))


def _says_never(text: str) -> bool:
    if "?" in text or re.search(_SEEN, text):
        return False
    fails = bool(re.search(_FAIL, text))
    if fails and re.search(_NEVER, text):
        return True
    if re.search(_SURE, text) and not re.search(_NOT_SURE, text):
        return True
    near = rf"(?:{_ALWAYS})\W+(?:\w+\W+){{0,3}}?(?:{_WORKS})|(?:{_WORKS})\W+(?:\w+\W+){{0,3}}?(?:{_ALWAYS})"
    return not fails and not re.search(_I, text) and re.search(near, text) is not None
