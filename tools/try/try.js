// Runs brimful in the reader's browser. Files come from this page's origin, and once Python is loaded the page
// blocks all its own requests: what is pasted cannot leave.

const form = document.getElementById("ask");
const state = document.getElementById("state");
const answer = document.getElementById("answer");
const tell = (word) => { state.textContent = state.dataset[word] ?? ""; state.dataset.now = word; };

// Compressed files are unpacked here: a plain file server sends them unchanged.
async function unpacked(name) {
    const packed = await fetch(`${name}.gz`);
    if (!packed.ok) throw new Error(`${name}.gz: ${packed.status}`);
    return packed.body.pipeThrough(new DecompressionStream("gzip"));
}

// Pyodide requests its own files by name; its WebAssembly is compiled while it downloads.
const plainFetch = globalThis.fetch;
globalThis.fetch = async (asked, ...rest) => {
    const url = String(asked.url ?? asked);
    if (!url.endsWith("/pyodide.asm.wasm")) return plainFetch(asked, ...rest);
    return new Response(await unpacked(url), { headers: { "content-type": "application/wasm" } });
};

async function start() {
    const fetched = ["libraries.zip", document.body.dataset.wheel].map(async (name) => {
        const got = await fetch(name);
        if (!got.ok) throw new Error(`${name}: ${got.status}`);
        return got.arrayBuffer();
    });
    const { loadPyodide } = await import("./pyodide.mjs");
    const python = await loadPyodide();
    // Pasted text is written into the current folder to be read; nothing is ever imported from there.
    const extractDir = python.runPython("import site, sys; sys.path.remove(''); site.getsitepackages()[0]");
    for (const archive of await Promise.all(fetched)) python.unpackArchive(archive, "zip", { extractDir });
    const alone = python.pyimport("brimful.server.console.fit_alone");
    const closed = document.createElement("meta");
    closed.httpEquiv = "Content-Security-Policy";
    closed.content = document.body.dataset.closed;
    document.head.append(closed);
    return alone.result;
}

function asked() {
    const given = new FormData(form);
    const one = (name) => given.get(name)?.trim() ?? "";
    return {
        language: document.documentElement.lang,
        config: given.get("config"), text: given.get("text"), // line ends and all
        model: one("model"), settings: one("settings"), other_mib: one("other_mib"),
        gpus: given.getAll("gpu"),
    };
}

function fill(query) {
    const given = new URLSearchParams(query);
    for (const name of ["config", "text", "other_mib"]) form.elements[name].value = "";
    form.elements.model.value = given.get("model") ?? "";
    form.elements.settings.value = given.get("set") ?? "";
    const cards = given.getAll("gpu");
    if (cards.length) for (const box of form.querySelectorAll("[name=gpu]")) box.checked = cards.includes(box.value);
}

let result = null;
let waiting = null; // asked before Python was here

function show() {
    if (result === null) { waiting = asked(); return; }
    tell("working");
    const began = performance.now();
    try {
        answer.innerHTML = result(JSON.stringify(asked()));
        state.dataset.tookMs = performance.now() - began;
        tell("ready");
    } catch (error) {
        console.error(error);
        tell("stopped");
    }
}

form.addEventListener("submit", (event) => { event.preventDefault(); show(); });
document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="?"]');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault(); // following it would load Python again
    fill(link.search);
    show();
});

tell("loading");
if (location.search) { fill(location.search); show(); }
start().then((ready) => {
    result = ready;
    tell("ready");
    if (waiting) show();
}).catch((error) => {
    console.error(error);
    tell("failed");
});
