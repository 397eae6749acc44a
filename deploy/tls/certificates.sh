#!/usr/bin/env bash
# Make an authority (ca.pem, ca-key.pem) and a certificate that it has signed (cert.pem, key.pem) in a new folder.
# Usage: certificates.sh FOLDER [DAYS]
set -euo pipefail
folder=${1:?"usage: certificates.sh FOLDER [DAYS]"}
days=${2:-365}
if [ -e "$folder" ]; then
    echo "certificates.sh: $folder must not exist. Choose another, or remove it." >&2
    exit 2
fi
umask 077
mkdir -p "$folder"
cd "$folder"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days "$days" \
    -subj "/CN=cns-dask authority" -addext "basicConstraints=critical,CA:TRUE" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" -keyout ca-key.pem -out ca.pem
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj "/CN=cns-dask" -keyout key.pem -out request.pem
openssl x509 -req -in request.pem -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days "$days" -out cert.pem
rm request.pem
echo "certificates: $PWD"
