"""The build backend of the wheel (PEP 517): maturin's, with the program `surefoot` added.

maturin builds the native module and packs the wheel. The program is a binary of another crate, so it is
built here with cargo and put where maturin takes data files from. `pip install .` and `pip wheel .` come
through here; nothing else does.

Set SUREFOOT_PROGRAM to the path of a built program to pack that one instead of building it.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import maturin
from maturin import (  # noqa: F401  (the hooks that need no program)
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "surefoot.exe" if sys.platform == "win32" else "surefoot"
SCRIPTS = ROOT / "python" / "wheel" / "data" / "scripts"

# maturin wants the folder in every hook, also where it is still empty.
SCRIPTS.mkdir(parents=True, exist_ok=True)


def built_program() -> Path:
    """Builds the program and says where it is."""
    given = os.environ.get("SUREFOOT_PROGRAM")
    if given:
        return Path(given)
    # The whole workspace's features, so that a target folder used for tests is used again.
    command = ["cargo", "build", "--release", "--locked", "--workspace", "--bin", "surefoot",
               "--message-format=json-render-diagnostics"]
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    except FileNotFoundError as error:
        raise SystemExit("cargo was not found: install Rust (rustup.rs), then try again") from error
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"the program could not be built: cargo ended with {error.returncode}, see above") from error
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message.get("target", {}).get("kind") == ["bin"]:
            return Path(message["executable"])
    raise SystemExit("cargo built no program called surefoot")


def add_program() -> None:
    shutil.copy2(built_program(), SCRIPTS / PROGRAM)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    add_program()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    add_program()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)
