"""Puts libuvala into the wheel, and the glibc that it needs into the wheel's name.

The library is plain C to Python, so one wheel serves every version of Python: py3-none. It links
only what the manylinux policy lists, so the platform follows from the newest version of a glibc
symbol that it names.
"""
import os
import platform
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LibraryHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        library = os.environ.get("UVALA_LIBRARY")
        if library is None:
            raise RuntimeError("UVALA_LIBRARY does not name a libuvala.so: run make wheel")
        versions = re.findall(rb"GLIBC_2\.(\d+)", Path(library).read_bytes())
        glibc = max(int(minor) for minor in versions)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_{glibc}_{platform.machine()}"
        build_data["force_include"][library] = "uvala/libuvala.so.0"
        for text in Path(self.root).parent.glob("LICENSE-*"):
            build_data["force_include"][str(text)] = f"uvala/{text.name}"
