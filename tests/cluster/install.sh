#!/usr/bin/env bash
# The system's packages that the tests of clusters need; as root, on Debian. Does nothing where they are there.
set -euo pipefail
packages=(openssh-server openssh-client nftables iproute2 munge slurm-client slurmctld slurmd)
missing=()
for package in "${packages[@]}"; do
    dpkg --status "$package" >/dev/null 2>&1 || missing+=("$package")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq -o DPkg::Lock::Timeout=300
apt-get install -o DPkg::Lock::Timeout=300 -y -qq --no-install-recommends "${missing[@]}"
