#!/usr/bin/env bash
# A large file as pieces of 60 MB that travel one by one, each with its SHA-256, and the file again from the pieces.
#   bash studies/real/gpu/pieces.sh make MODEL.gguf pieces/
#   bash studies/real/gpu/pieces.sh join pieces/ MODEL.gguf     # names the pieces that are missing or damaged
# Git ignores *.part. Bring the two small files with the pieces.
set -euo pipefail
case "${1:-}/$#" in
make/3)
    mkdir -p "$3" && rm -f "$3"/*.part
    split --bytes 60MB --numeric-suffixes --suffix-length 3 --additional-suffix .part "$2" "$3/"
    (cd "$3" && sha256sum -- *.part >pieces.sha256 && cat pieces.sha256)
    sha256sum <"$2" >"$3/whole.sha256"
    ;;
join/3)
    (cd "$2" && sha256sum --check --quiet pieces.sha256) || { echo "pieces: bring those named above." >&2; exit 1; }
    (cd "$2" && cut --characters 67- pieces.sha256 | xargs cat) >"$3.part"
    sha256sum --check --quiet "$2/whole.sha256" <"$3.part"
    mv "$3.part" "$3"
    ;;
*) sed -n 2,5p "$0" >&2; exit 2 ;;
esac
