"""Prints the named dependency groups of pyproject.toml and the requirements of the package."""

import sys
from pathlib import Path

from pip._vendor import tomli

project = tomli.loads(Path("pyproject.toml").read_text())
print(*project["project"]["dependencies"], sep="\n")
for group in sys.argv[1:]:
    print(*project["dependency-groups"][group], sep="\n")
