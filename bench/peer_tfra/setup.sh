#!/usr/bin/env bash
# Makes .venvs/tfra-0.8.1 in the repository root: the peer, with the only TensorFlow it works with.
# Does nothing when the environment is complete. Exit code 3: no usable python3.11 on PATH.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
venv="$root/.venvs/tfra-0.8.1"
peer="tensorflow-recommenders-addons==0.8.1"
# Written last and compared first, so that an interrupted or outdated installation is redone.
stamp="$venv/.complete"
wanted="$(cat "$here/requirements.txt"; echo "$peer")"

if [[ -f "$stamp" && "$(cat "$stamp")" == "$wanted" && -x "$venv/bin/python" ]]; then
  echo "peer: .venvs/tfra-0.8.1 is ready"
  exit 0
fi

# A name on PATH may be a version manager's shim that cannot start, so each candidate is tried.
python=""
while IFS= read -r candidate; do
  if "$candidate" -c 'import sys, venv, ensurepip; assert sys.version_info[:2] == (3, 11)' \
    2>/dev/null; then
    python="$candidate"
    break
  fi
done < <(type -ap python3.11)
if [[ -z "$python" ]]; then
  echo "peer: needs python3.11 (with venv) on PATH"
  exit 3
fi

echo "peer: creating .venvs/tfra-0.8.1"
"$python" -m venv --clear "$venv"
echo "peer: installing TensorFlow 2.16.2 (a few hundred megabytes)"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check -r "$here/requirements.txt"
echo "peer: installing $peer"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps "$peer"
echo "$wanted" >"$stamp"
echo "peer: .venvs/tfra-0.8.1 is ready"
