"""Source that a program is run with in place of its files: nothing is written, and `__file__` stays what it is."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import os
from types import CodeType
from typing import IO

from noclobber.model.source import give_source


class Served:
    """Texts by the real path of the file that each stands in for."""

    def __init__(self, texts: dict[str, bytes]) -> None:
        self._texts = texts

    def read(self, path: str) -> bytes | None:
        """The text in place of a file, None where the file itself is to be read."""
        text = self._texts.get(os.path.realpath(path))
        if text is not None:
            give_source(path, importlib.util.decode_source(text))
        return text

    def arm(self) -> None:
        """Serve the modules that are imported from now on, and the script that multiprocessing runs again."""
        owner = importlib.machinery.SourceFileLoader
        native = owner.get_code

        def get_code(loader: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
            path = loader.get_filename(fullname)
            text = self.read(path)
            if text is None:
                return native(loader, fullname)
            code: CodeType = loader.source_to_code(text, path)
            return code

        owner.get_code = get_code  # type: ignore[method-assign,assignment]
        opened = io.open_code

        def open_code(path: str) -> IO[bytes]:
            text = self.read(path)
            return opened(path) if text is None else io.BytesIO(text)

        io.open_code = open_code  # `runpy` reads a script by it
