#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes an authority, once, and certificates of it, with openssl: to serve with, and to show to whom is called.
#
#   sh certificates.sh FOLDER NAME=SAN[,SAN]...
#   sh certificates.sh certificates controller=DNS:controller.example,IP:10.0.0.10 switch=IP:10.0.0.5
#
# FOLDER gets ca.pem and ca.key, NAME.pem and NAME.key. Who has a certificate of this authority may drive switches and
# read etcd, so it is for controllers, switches and etcd alone; keep ca.key where nobody else comes. A NAME that is there
# already is made anew.
set -eu
umask 077

usage="usage: certificates.sh FOLDER NAME=SAN[,SAN]..., as in: certificates.sh certificates switch=IP:10.0.0.5"
folder=${1:?$usage}
shift
for one in "$@"; do
    case $one in
        ca=*) echo "certificates.sh: $one: the name must not be ca, which is the authority's" >&2; exit 1 ;;
        */* | =* | *[!=]=) echo "certificates.sh: $one: must be NAME=SAN[,SAN]..." >&2; exit 1 ;;
        *=DNS:* | *=IP:*) ;;
        *) echo "certificates.sh: $one: must be NAME=DNS:HOST or NAME=IP:ADDRESS; separate several with commas" >&2; exit 1 ;;
    esac
done
: "${1:?$usage}"

mkdir -p "$folder"
if [ ! -e "$folder/ca.pem" ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=p4reduce" \
        -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign,cRLSign" \
        -keyout "$folder/ca.key" -out "$folder/ca.pem" 2>/dev/null
fi
for one in "$@"; do
    name=${one%%=*}
    extensions="subjectAltName=${one#*=}
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth,clientAuth"
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$name" \
        -keyout "$folder/$name.key" -out "$folder/$name.csr" 2>/dev/null
    printf '%s\n' "$extensions" > "$folder/$name.ext"
    openssl x509 -req -in "$folder/$name.csr" -CA "$folder/ca.pem" -CAkey "$folder/ca.key" -days 365 \
        -extfile "$folder/$name.ext" -out "$folder/$name.pem" 2>/dev/null
    rm "$folder/$name.csr" "$folder/$name.ext"
done
chmod 644 "$folder"/*.pem
echo "$folder: $(cd "$folder" && echo *.pem)"
