#!/bin/sh
# Create .venv and install one set of packages into it, once.
#
#   tools/setup.sh run      what `make run` needs
#   tools/setup.sh dev      what `make check`, `make docs` and `make bench` need
#   tools/setup.sh test     dev, PyTorch, and what tests trace with it
#   tools/setup.sh engines  test, Ray, an S3 server, and slurmdbd with MariaDB: for `make test-engines`
#   tools/setup.sh kubernetes  test, and an API server and a scheduler built from source (10 to 15 minutes, once)
#   tools/setup.sh skypilot  test, and SkyPilot's API server in a separate environment (460 MB)
#   tools/setup.sh system   what the tests need beyond Python (Chromium, Pyodide, promtool, systemd-analyze, Slurm, zsh, fish)
#
# PYTHON=/path/to/python3 chooses the interpreter for .venv; a .venv with another one is made again.
# The set is current while its stamp has the checksum of pyproject.toml and constraints.txt, so a second call
# takes milliseconds. A .venv whose installation was interrupted is deleted and created again.
set -eu
cd "$(dirname "$0")/.."

venv=.venv
busy=$venv/.installing # holds the process id of the installer while it works
home=$venv/.made-in    # the folder it was made in: a moved .venv points at the old one

say() { printf 'brimful: %s\n' "$*" >&2; }
stop() { say "$*"; exit 1; }
is_root() { [ "$(id -u)" = 0 ]; }
has_apt() { [ -e /etc/debian_version ] && command -v apt-get >/dev/null 2>&1; }
new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

apt_install() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 </dev/null
}

# For packages with daemons: policy-rc.d keeps an init system from starting them.
apt_install_quietly() {
    policy=/usr/sbin/policy-rc.d
    if [ -e "$policy" ]; then policy=; else printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"; fi
    # shellcheck disable=SC2086
    if apt_install $1; then installed=yes; else installed=; fi
    if [ -n "$policy" ]; then rm -f "$policy"; fi
    [ -n "$installed" ]
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        new_enough "$PYTHON" || stop "PYTHON=$PYTHON is not a working Python 3.11 or newer"
        printf '%s\n' "$PYTHON"
        return
    fi
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        if new_enough "$name"; then
            command -v "$name"
            return
        fi
    done
    stop "needs Python 3.11 or newer, and found none on PATH; name one with: make run PYTHON=/path/to/python3"
}

# Debian and Ubuntu ship Python without ensurepip, which installs pip into a new environment.
need_ensurepip() {
    "$1" -c 'import venv, ensurepip' >/dev/null 2>&1 && return
    package=$("$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    has_apt || stop "$1 lacks the modules venv and ensurepip; install them, or name another Python with PYTHON="
    is_root || stop "$1 lacks the modules venv and ensurepip; run: sudo apt-get install $package"
    say "installing the Debian package $package ..."
    apt_install "$package" || stop "could not install it; run: apt-get update && apt-get install $package"
}

wait_for_other_installer() {
    [ -e "$busy" ] || return 0
    other=$(cat "$busy" 2>/dev/null || true)
    if [ -n "$other" ] && kill -0 "$other" 2>/dev/null; then
        say "waiting for the installation that process $other has under way ..."
        while [ -e "$busy" ] && kill -0 "$other" 2>/dev/null; do sleep 1; done
    fi
    if [ -e "$busy" ]; then
        say "the last installation was interrupted: removing .venv"
        rm -rf "$venv"
    fi
}

make_venv() {
    if [ -e "$home" ] && [ "$(cat "$home")" != "$PWD" ]; then rm -rf "$venv"; fi
    if new_enough "$venv/bin/python" && "$venv/bin/python" -c 'import pip' >/dev/null 2>&1; then return; fi
    python=$(find_python)
    need_ensurepip "$python"
    say "making .venv with $("$python" --version 2>&1) ..."
    rm -rf "$venv"
    mkdir "$venv"
    echo $$ >"$busy"
    "$python" -m venv "$venv" || stop "$python -m venv failed; name another Python with PYTHON="
    pwd >"$home"
}

# PYTHON= names another interpreter than .venv was made with: only a new .venv has that one.
has_other_python() {
    if [ -z "${PYTHON:-}" ] || [ ! -x "$venv/bin/python" ]; then return 1; fi
    which='import sys; print(sys.base_prefix, sys.version_info[:2])'
    [ "$("$PYTHON" -c "$which" 2>&1)" != "$("$venv/bin/python" -c "$which" 2>&1)" ]
}

install_set() { # NAME EXTRAS
    wait_for_other_installer
    if has_other_python; then
        find_python >/dev/null
        say "PYTHON=$PYTHON is not what .venv was made with: removing .venv"
        rm -rf "$venv"
    fi
    stamp=$venv/.ready-$1
    sum=$PWD:$(cat pyproject.toml constraints.txt | cksum)
    if [ "$(cat "$stamp" 2>/dev/null)" = "$sum" ] && [ -x "$venv/bin/python" ]; then return; fi
    make_venv
    echo $$ >"$busy"
    rm -f "$stamp"
    say "installing brimful[$2] into .venv ..."
    if "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off \
        --constraint constraints.txt --editable ".[$2]" >"$venv/install.log" 2>&1; then
        echo "$sum" >"$stamp"
        rm -f "$busy"
        return
    fi
    # pip itself gave up: what it had installed is complete, so the next call may continue from here.
    rm -f "$busy"
    tail -n 15 "$venv/install.log" >&2
    stop "pip could not install brimful[$2]; the whole of its log is in .venv/install.log"
}

find_chromium() { command -v chromium || command -v chromium-browser || command -v google-chrome; }

# Playwright drives the browser through its own program, which needs libatomic.
driver_runs() {
    for driver in "$venv"/lib/python*/site-packages/playwright/driver/node; do
        "$driver" --version >/dev/null 2>&1 || return 1
    done
}

# Only the program, into .venv: the package itself would start a server that listens on every address.
install_promtool() {
    if command -v promtool >/dev/null || [ -x "$venv/bin/promtool" ]; then return; fi
    if has_apt; then
        say "fetching promtool from the Debian package prometheus ..."
        folder=$(mktemp -d)
        if is_root; then apt-get update -qq >/dev/null; fi
        if (cd "$folder" && apt-get download -qq prometheus >/dev/null 2>&1) &&
            dpkg-deb --fsys-tarfile "$folder"/prometheus_*.deb | tar -xO ./usr/bin/promtool >"$folder/promtool"; then
            chmod 755 "$folder/promtool"
            mv "$folder/promtool" "$venv/bin/promtool"
        fi
        rm -rf "$folder"
        if [ -x "$venv/bin/promtool" ]; then return; fi
    fi
    say "no promtool here: the tests of the alert rules will be skipped. To run them, put promtool on PATH."
}

# systemd-analyze reads units without systemd running.
install_systemd() {
    if command -v systemd-analyze >/dev/null; then return; fi
    if has_apt && is_root; then
        say "installing the Debian package systemd to check the unit ..."
        apt_install systemd && return
    fi
    say "no systemd-analyze here: the test of the systemd unit will be skipped."
}

# Debian's packages start nothing by themselves here: the tests start a private cluster, on loopback.
install_slurm() {
    missing=
    for program in slurmctld munged sshd; do
        PATH=$PATH:/usr/sbin command -v $program >/dev/null || missing=yes
    done
    if [ -z "$missing" ]; then return; fi
    packages="slurmctld slurmd slurm-client munge openssh-server"
    if has_apt && is_root; then
        say "installing the Debian packages $packages for the tests of the Slurm engine ..."
        apt_install_quietly "$packages" && return
    fi
    say "no Slurm here: the tests of the Slurm engine will be skipped."
    if has_apt; then say "to run them, as root: apt-get install $packages"; fi
}

# Slurm's accounting: slurmdbd and only the server of MariaDB, which starts nothing by itself.
install_accounting() {
    if PATH=$PATH:/usr/sbin command -v slurmdbd >/dev/null && PATH=$PATH:/usr/sbin command -v mariadbd >/dev/null; then return; fi
    packages="slurmdbd mariadb-server-core"
    if has_apt && is_root; then
        say "installing the Debian packages $packages for the test of Slurm's accounting ..."
        apt_install_quietly "$packages" && return
    fi
    say "no slurmdbd or MariaDB here: the test of Slurm's accounting will be skipped."
    if has_apt; then say "to run it, as root: apt-get install $packages"; fi
}

# The completion tests type into these shells.
install_shells() {
    if command -v zsh >/dev/null && command -v fish >/dev/null; then return; fi
    if has_apt && is_root; then
        say "installing the Debian packages zsh and fish for the tests of completion ..."
        apt_install zsh fish && return
    fi
    say "no zsh or fish here: the tests of completion in them will be skipped."
}

install_system() {
    install_shells
    install_promtool
    install_systemd
    install_slurm
    # Python for browsers: one page of the documentation runs on it.
    "$venv/bin/python" -m tools.pyodide || say "no Pyodide here: the test of the page that runs in the browser will be skipped."
    if find_chromium >/dev/null && driver_runs; then return; fi
    packages="chromium fonts-liberation libatomic1"
    # Ubuntu's chromium package only fetches a snap, which root on a server often cannot run.
    if has_apt && is_root && ! grep -qi '^ID=ubuntu' /etc/os-release; then
        say "installing the Debian packages $packages for the browser tests ..."
        # shellcheck disable=SC2086
        apt_install $packages && return
    fi
    say "no working Chromium here: the browser tests will be skipped."
    if has_apt; then say "to run them: sudo apt-get install $packages"; else say "to run them, put chromium on PATH"; fi
}

# Outside .venv. torchvision: its wheels are built for CUDA, and with a CPU build of PyTorch importing them fails.
# transformers: the measured release, with older dependencies than the tests use.
install_cards() {
    measured="torchvision==0.28.0 transformers==4.51.3 tokenizers==0.21.4 huggingface_hub==0.36.2"
    [ "$(cat "$venv/cards/.ready" 2>/dev/null)" = "$measured" ] && return
    rm -rf "$venv/cards"
    # shellcheck disable=SC2086
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --quiet --no-deps \
        --target "$venv/cards" $measured || stop "pip could not install $measured"
    echo "$measured" >"$venv/cards/.ready"
}

# Also outside .venv: it pins an older PyTorch than the one traced here.
install_oracle() {
    traced="litgpt==0.5.13"
    [ "$(cat "$venv/oracle/.ready" 2>/dev/null)" = "$traced" ] && return
    rm -rf "$venv/oracle"
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --quiet --no-deps \
        --target "$venv/oracle" "$traced" || stop "pip could not install $traced"
    echo "$traced" >"$venv/oracle/.ready"
}

# Published training scripts, traced by the tests. Outside .venv: they pin older releases than the tests use.
install_recipes() {
    traced="trl==1.16.0 datasets==5.2.0 dill==0.4.1 multiprocess==0.70.19 xxhash==4.1.0 pandas==3.1.1"
    [ "$(cat "$venv/recipes/.ready" 2>/dev/null)" = "$traced" ] && return
    rm -rf "$venv/recipes"
    # shellcheck disable=SC2086
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --quiet --no-deps \
        --target "$venv/recipes" $traced || stop "pip could not install $traced"
    echo "$traced" >"$venv/recipes/.ready"
}

# A separate environment: brimful never imports it, and it pins its dependencies.
install_skypilot() {
    started="skypilot==0.14.1"
    [ "$(cat "$venv/skypilot/.ready" 2>/dev/null)" = "$started" ] && return
    rm -rf "$venv/skypilot"
    say "installing $started into .venv/skypilot ..."
    "$venv/bin/python" -m venv --without-pip "$venv/skypilot"
    "$venv/bin/python" -m pip --python "$venv/skypilot/bin/python" install --disable-pip-version-check --no-input \
        --quiet "$started" || stop "pip could not install $started"
    echo "$started" >"$venv/skypilot/.ready"
}

case "${1:-}" in
run) install_set run server ;;
dev) install_set dev dev ;;
test) install_set test dev,trace,peers ;;
cards) install_set test dev,trace,peers && install_cards ;;
engines) install_set engines dev,trace,peers,engines && install_accounting ;;
kubernetes) install_set test dev,trace,peers && tools/kubernetes.sh ;;
oracle) install_set test dev,trace,peers && install_oracle ;;
recipes) install_set test dev,trace,peers && install_recipes ;;
skypilot) install_set test dev,trace,peers && install_skypilot ;;
system) install_system ;;
*) stop "usage: tools/setup.sh run|dev|test|cards|engines|kubernetes|oracle|recipes|skypilot|system" ;;
esac
