#!/usr/bin/env bash
# The system's packages that the tests of clusters need; as root, on Debian. Does nothing where they are there.
# Where they cannot be had it says why, within some minutes, and ends with 1.
set -euo pipefail
PACKAGES=(openssh-server openssh-client nftables iproute2 munge slurm-client slurmctld slurmd postgresql
          prometheus prometheus-alertmanager prometheus-pushgateway)
FETCH_S=180
LOCK_S=120

cannot() {
    echo "tests/cluster/install.sh: $1; tests that miss ${missing[*]} are skipped. $2" >&2
    exit 1
}

missing=()
for package in "${PACKAGES[@]}"; do
    [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0
command -v apt-get >/dev/null || cannot "there is no apt-get" "Install them in this system's own way."
[[ $EUID -eq 0 ]] || cannot "only root can install packages" "Run it as root."

export DEBIAN_FRONTEND=noninteractive
apt=(apt-get -qq -y -o "DPkg::Lock::Timeout=$LOCK_S" -o Acquire::Retries=1 -o Acquire::http::Timeout=30)
# The network has a deadline; what it brought is then installed without one, for that is not to be cut short.
fetch() { timeout --kill-after=10 "$FETCH_S" "${apt[@]}" "$@"; }
fetch update || echo "tests/cluster/install.sh: the lists of packages could not be renewed" >&2
fetch install --no-install-recommends --download-only "${missing[@]}" ||
    cannot "the packages could not be fetched within $FETCH_S s" "Run it again where their archive can be reached."
# The tests start their own servers: none of the system's is to begin with its package.
POLICY=/usr/sbin/policy-rc.d
if [[ ! -e $POLICY ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$POLICY"
    chmod +x "$POLICY"
    trap 'rm -f "$POLICY"' EXIT
fi
"${apt[@]}" install --no-install-recommends "${missing[@]}" ||
    cannot "the packages could not be installed" "What apt-get said above names the cause."
