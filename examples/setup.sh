#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs those of the named Debian packages that are missing: usage setup.sh PACKAGE...
# Where it may not install, it prints the one command to run and ends with status 1.
set -uo pipefail

command -v dpkg-query >/dev/null || { echo "This is not a Debian or Ubuntu machine. Install by other means: $*" >&2; exit 1; }
missing=()
for package in "$@"; do
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
done
((${#missing[@]} > 0)) || exit 0

as_root=()
if ((EUID != 0)); then
  # sudo may ask for a password only where somebody can type one.
  if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then as_root=(sudo); else as_root=(false); fi
fi
install() {
  "${as_root[@]}" apt-get update -q &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends "${missing[@]}"
}
echo "Installing: ${missing[*]}" >&2
install >&2 || {
  echo "These packages are missing and could not be installed. Run, as root:" >&2
  echo "apt-get update && apt-get install -y ${missing[*]}"
  exit 1
}
