"""Where a script keeps its checkpoints, and the words with which it goes on from one."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from brimful.guard.command import NANOGPT_STYLE, TRAINER_STYLE, Command, spoken
from brimful.job import newest


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A whole checkpoint, when it was written, and how the script is told to use it."""

    path: Path
    at_s: float
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """How this command keeps checkpoints. `words` and `path` are the user's own, where given."""

    command: Command
    path: Path | None = None
    words: tuple[str, ...] = ()
    sealed: Path | None = None  # a folder of `brimful.job`, whose script looks there by itself

    def find(self, since_s: float) -> Found | None:
        """The newest whole checkpoint written since then; what another run left is no place to go on from."""
        for path, words in (self._own(), self._sealed(), self._nanogpt(), self._trainer()):
            if path is not None and (at_s := path.stat().st_mtime) >= since_s:
                told = tuple(word.replace("{checkpoint}", str(path)) for word in self.words or words)
                return Found(path=path, at_s=at_s, words=told)
        return None

    def _own(self) -> tuple[Path | None, Sequence[str]]:
        if self.path is None or not self.path.exists():
            return None, ()
        if self.path.is_file():
            return self.path, ()
        inside = [each for each in self.path.iterdir() if not each.name.startswith(".")]
        return max(inside, key=lambda each: each.stat().st_mtime, default=None), ()

    def _sealed(self) -> tuple[Path | None, Sequence[str]]:
        found = None if self.sealed is None else newest(self.sealed)
        return (None, ()) if found is None else (found.folder, ())

    def _nanogpt(self) -> tuple[Path | None, Sequence[str]]:
        """out_dir/ckpt.pt, if it is whole: torch.save writes in place, and a crash may leave half of it."""
        known = self.command.globals
        if self.command.style != NANOGPT_STYLE or "init_from" not in known or "out_dir" not in known:
            return None, ()
        path = Path(str(known["out_dir"])) / "ckpt.pt"
        return (path if zipfile.is_zipfile(path) else None), ("--init_from=resume",)

    def _trainer(self) -> tuple[Path | None, Sequence[str]]:
        """output_dir/checkpoint-N with Trainer's state, which it writes last."""
        if self.command.style != TRAINER_STYLE:
            return None, ()
        folder = spoken(self.command.words[self.command.begins :]).get("output_dir")
        if not isinstance(folder, str) or not Path(folder).is_dir():
            return None, ()
        steps = {
            int(match[1]): each
            for each in Path(folder).iterdir()
            if (match := re.fullmatch(r"checkpoint-(\d{1,12})", each.name))
            and (each / "trainer_state.json").is_file()
        }
        if not steps:
            return None, ()
        path = steps[max(steps)]
        return path, (f"--resume_from_checkpoint={path}",)
