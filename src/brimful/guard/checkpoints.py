"""Where a script keeps its checkpoints, and the arguments that make it resume from one."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from brimful.guard.command import NANOGPT_STYLE, TRAINER_STYLE, Command, spoken
from brimful.job import newest


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A complete checkpoint, when it was written, and the arguments to use it."""

    path: Path
    at_s: float
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """How this command keeps checkpoints. `words` and `path` are the user's own, if given."""

    command: Command
    path: Path | None = None
    words: tuple[str, ...] = ()
    sealed: Path | None = None  # a folder of `brimful.job`, whose script looks there by itself

    def find(self, since_s: float) -> Found | None:
        """The newest complete checkpoint written since then; one from another run is not used."""
        for path, words in self._whole_ones():
            if (at_s := path.stat().st_mtime) >= since_s:
                filled = tuple(word.replace("{checkpoint}", str(path)) for word in self.words or words)
                return Found(path=path, at_s=at_s, words=filled)
        return None

    def _whole_ones(self) -> Iterator[tuple[Path, Sequence[str]]]:
        """The checkpoints, and the arguments that resume from each: the user's own path first."""
        if self.path is not None and self.path.is_file():
            yield self.path, ()
        elif self.path is not None and self.path.exists():
            inside = [each for each in self.path.iterdir() if not each.name.startswith(".")]
            yield from ((each, ()) for each in sorted(inside, key=lambda each: -each.stat().st_mtime)[:1])
        if self.sealed is not None and (sealed := newest(self.sealed)) is not None:
            yield sealed.folder, ()
        known = self.command.globals
        if self.command.style == NANOGPT_STYLE and "init_from" in known and "out_dir" in known:
            # torch.save writes in place, and a crash may leave half of it.
            path = Path(str(known["out_dir"])) / "ckpt.pt"
            if zipfile.is_zipfile(path):
                yield path, ("--init_from=resume",)
        if self.command.style == TRAINER_STYLE and (saved := self._trainer()) is not None:
            yield saved, (f"--resume_from_checkpoint={saved}",)

    def _trainer(self) -> Path | None:
        """output_dir/checkpoint-N with Trainer's state, which it writes last."""
        folder = spoken(self.command.words[self.command.begins :]).get("output_dir")
        if not isinstance(folder, str) or not Path(folder).is_dir():
            return None
        steps = {
            int(match[1]): each
            for each in Path(folder).iterdir()
            if (match := re.fullmatch(r"checkpoint-(\d{1,12})", each.name))
            and (each / "trainer_state.json").is_file()
        }
        return steps[max(steps)] if steps else None
