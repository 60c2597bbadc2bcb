# Sourced by every script: the checkout as working folder, its environment, progress lines.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ROOT=$PWD
VENV=${MSTAR_RESIDENT_VENV:-$ROOT/.venv}
PY=$VENV/bin/python
export VIRTUAL_ENV=$VENV PATH=$VENV/bin:$PATH PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
unset PYTHONPATH PYTHONHOME

say() { printf '==> [%4ds] %s\n' "$SECONDS" "$*"; }
fail() { printf '%s: %s\n' "$(basename "$0")" "$1" >&2; exit "${2:-3}"; }
