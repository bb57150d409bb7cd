"""The settings a text advises, as a config would spell them, in code or in prose of four languages.

A line that negates the advice ("not", "instead of", a question) sets nothing.
"""

from __future__ import annotations

import re

from brimful.diagnose.claims.reading import folded

_NOT = (
    r"\bno\b|\bnot\b|n't\b|\b(?:dont|wont|cant|isnt|doesnt)\b"
    r"|\bnever\b|\bsans\b|\bpas\b|\bsin\b|\bohne\b|\bnicht\b|\bkein|\bwithout\b"
)
_OFF = (
    r"\boff\b|disabl|remov|\bdrop|\bstop\b|avoid|\bskip|\bkill|get rid"
    r"|desactiv|\bcoupe|etein|enlev|retire|\bvire|\barret|\bevite|supprim"
    r"|\bapag|quita|deshabilit|deja de|elimin|\bevita"
    r"|deaktivier|(?:ab|aus)(?:zu|ge)?schalt|abstell|\baus\b|\bweg\b|\braus\b|verzicht|entfern|streich"
    r"|(?:schalt|stell)\w*\b.{0,40}\bab\b"
)
_ON = r"turn\w* on|\benable|\bactiv(?:e|er|ez|a|ar)\b|einschalt|anschalt|\bkeep|garde|conserv|behalt|deja el"
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
    r"|for good\b|for ever|forever|pour de bon|para siempre|endgultig|ein fur alle mal"
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
    r"|garanti(?:e|es|s|ert)?\b|infaillible|garantiz|infalible|a prueba de (?:fallos|errores|balas)"
    r"|todsicher|ausfallsicher|narrensicher|idiotensicher"
)
_NOT_SURE = rf"(?:{_NOT})\W+(?:\w+\W+){{0,2}}(?:guarant|garant)"
_HALF = (
    r"\bf(?:p|loat)?_?16\b|half[- ]?precision|\.half\(|torch\.half|demi[- ]?precision|media precision"
    r"|halbe[rn]? (?:genau|pr(?:a|ae)z)"
)
_INSTEAD = (
    r"instead of|rather than|\bover\b|au lieu d|plutot que?|en vez de|en lugar de|anstatt|\bstatt\b|, not"
)
_BF16 = r"\bbf(?:loat)?_?16\b"
_SETTING = re.compile(
    r"(?:^|[\s`(,;])(?:--)?([a-z_]{2,40})\s*[=:]\s*['\"]?([A-Za-z0-9_.]{1,24})['\"]?", re.IGNORECASE
)
_TIMES = re.compile(r"\b(?:batch\w*\D{0,20})?(\d{1,4})\s?[x×*]\s?(\d{1,5})\b", re.IGNORECASE)
_SAID_BATCH = re.compile(
    r"(?:\b(?:batch|lots?\b|lotes?\b|stapel)\w*(?:[ -](?:size|gro(?:ss|e)e?))?[^\d\n]{0,30}?"
    r"|\bbsz?\s?[=:]?\s?)"
    r"(?:\d{1,4}\s?(?:to|auf|a|->|→)\s?)?(\d{1,4})\b(?!\s?(?:%|[x×*]|gb|gib|go\b|mb|bit|token))"
)
_EFFECTIVE = re.compile(  # "effective batch of 480" is not the batch
    r"(?:(?:batch\w*|lots?|lotes?)\s+)?(?:effe[ck]ti\w*|efectiv\w*)"
    r"(?:[ -](?:batch\w*|size|lots?|lotes?))*[^,;.]{0,25}"
)
_SAID_STEPS = re.compile(
    r"\b(\d{1,4}) (?:steps? (?:of|d')|pas d'|pasos de|gradient[- ]?)? ?(?:ac{1,2}umul|akkumul)"
    r"|(?:ac{1,2}umul|akkumul)\w*(?: (?:steps?|of|de|von|a|auf|to|=|x))* (\d{1,4})\b(?! ?[%x×*])"
)
_KEYS = {
    "batch_size": "batch_size", "per_device_train_batch_size": "batch_size", "micro_batch_size": "batch_size",
    "device_batch_size": "batch_size", "gradient_accumulation_steps": "gradient_accumulation_steps",
    "grad_accum": "gradient_accumulation_steps", "compile": "compile", "torch_compile": "compile",
    "dtype": "dtype", "block_size": "block_size", "bs": "batch_size", "bsz": "batch_size",
    "grad_accumulation": "gradient_accumulation_steps",
    "gradient_accumulation": "gradient_accumulation_steps",
}  # fmt: skip


def settings_in(line: str) -> dict[str, str]:
    """Settings in a line, under our own names."""
    text = folded(line)
    found = {"compile": "False"} if any(map(_says_compile_off, _clauses(text))) else {}
    found |= {"dtype": "float16"} if any(map(_says_half, _clauses(text))) else {}
    if (times := _TIMES.search(line)) and re.search(
        r"batch|lots?\b|lote|stapel|ac{1,2}um|akkum", line, re.IGNORECASE
    ):
        found |= {"batch_size": times[1], "gradient_accumulation_steps": times[2]}
    if steps := _SAID_STEPS.search(text):
        found["gradient_accumulation_steps"] = steps[1] or steps[2]
    for match in _SETTING.finditer(line):
        if (key := _KEYS.get(match[1].lower())) is not None:
            said_value = match[2].rstrip(".")  # a full stop ends the sentence, not the number
            word = said_value.lower()
            switch = {"0": "False", "off": "False", "no": "False", "1": "True", "on": "True", "yes": "True"}
            value = switch.get(word, said_value) if key == "compile" else said_value
            found[key] = {"true": "True", "false": "False"}.get(word, value)
    text = _EFFECTIVE.sub(" ", text)
    if "batch_size" not in found and (said := _SAID_BATCH.search(text)):
        found["batch_size"] = said[1]
    return found


def never_fails(text: str) -> bool:
    """A folded statement that promises it always works."""
    return any(map(_says_never, re.split(r"[.!](?=\s)|(?<=\?)", text)))


def _clauses(text: str) -> list[str]:
    """Parts in which one "not" negates one thing; a question keeps its mark."""
    return re.split(r"[,;.!](?=\s)|(?<=\?)|\s(?:and|et|und|y|e)\s", text)


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
    """One word that turns it off; two of them ("do not disable") cancel out."""
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
