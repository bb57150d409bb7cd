"""Where in the user's program an op runs: the module by its name in the model, and the line of code.

A backward op has no line. Its autograd node carries the number it was given in the forward pass, and the
module and line of the forward op are stored under that number.
"""

from __future__ import annotations

import sys
import weakref
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from brimful.tracing.tape import BACKWARD, FORWARD, Place

_NOT_THEIRS = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<frozen", "<string>")


class Places:
    """Tracks module calls and lines while a program runs."""

    def __init__(self) -> None:
        self.phase: str | None = None  # set while an optimizer steps
        self.inside: list[str] = []
        self.called_once = False  # a model has been called: what comes before is set-up
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._forward: dict[int, tuple[str, str]] = {}  # autograd node -> module, line
        self._theirs: dict[CodeType, bool] = {}
        self._read: dict[tuple[CodeType, int], str] = {}

    def enter(self, module: Any, _: Any) -> None:
        name = self._names.get(module)
        if name is None:
            for path, child in module.named_modules():
                self._names.setdefault(child, path or type(module).__name__)
            name = self._names[module]
        self.inside.append(name)
        self.called_once = True

    def leave(self, *_: Any) -> None:
        if self.inside:
            self.inside.pop()

    def of(self, op: str, *, backward: bool, setup: bool) -> Place:
        """Where the current op belongs."""
        if backward:
            node = torch._C._current_autograd_node()
            module, line = self._forward.get(node._sequence_nr() if node is not None else -1, ("", ""))
            return Place(op, self.inside[-1] if self.inside else module, line or self.line(), BACKWARD)
        module, line = self.inside[-1] if self.inside else "", self.line()
        if torch.is_grad_enabled():
            # The node was created, and counted, just before its op reached us; later ops see the same count.
            self._forward.setdefault(torch._C._autograd._get_sequence_nr() - 1, (module, line))
        # A module called while an optimizer steps is in its closure: the forward pass, as in Lightning.
        phase = None if self.inside else self.phase
        return Place(op, module, line, phase or ("setup" if setup else FORWARD))

    def line(self) -> str:
        """file.py:12 in function, of the innermost frame that is neither PyTorch's nor ours."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            theirs = self._theirs.get(code)
            if theirs is None:
                theirs = self._theirs[code] = not code.co_filename.startswith(_NOT_THEIRS)
            if theirs:
                key = (code, frame.f_lineno)
                if key not in self._read:
                    name = "" if code.co_name == "<module>" else f" in {code.co_name}"
                    self._read[key] = f"{Path(code.co_filename).name}:{frame.f_lineno}{name}"
                return self._read[key]
            frame = frame.f_back
        return ""
