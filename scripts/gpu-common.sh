# Sourced by gpu-test and gpu-bench: python3 as found, and beside its own packages the wheels of a folder (default dist): this
# package's and those of what python3 lacks, such as pytest. Nothing is fetched. Records go to $RECORDS, if set.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
say() { printf '==> [%4ds] %s\n' "$SECONDS" "$*"; }
name=$(basename "$0")
wheels=${1:-${WHEELS:-dist}}
compgen -G "$wheels/mstar_resident-*.whl" >/dev/null || { echo "$name: no wheel of this package in $wheels: scripts/wheel builds one" >&2; exit 2; }
site=$(mktemp -d) logs=$(mktemp -d)
export RECORDS=${RECORDS:-$(mktemp -d)} PYTHONPATH=$site PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { echo "$name: no CUDA device was found" >&2; exit 2; }
say "install the wheels of $wheels beside python3's own packages"
python3 -m pip install --quiet --no-index --no-deps --no-compile --no-warn-script-location --target "$site" "$wheels"/*.whl
