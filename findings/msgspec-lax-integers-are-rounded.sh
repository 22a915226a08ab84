#!/bin/sh
# msgspec 0.22.0: strict=False makes integers of numbers that are none. Seen on 2026-11-27, Python 3.11, Linux x86_64.
#
# Expected: with strict=False a field of type int takes 2.0, a whole number that is written as a float, and refuses
# every number with a fraction, as it does 1.5; or it refuses what a float can't hold.
# What happens: the number is made a float first, and only that has to be whole. So 4503599627370496.5 becomes
# 4503599627370496, 0.99999999999999999999 becomes 1, 1e-400 becomes 0, and 9007199254740993.0 becomes the integer below
# it, without an error.
# Why it matters: a server that takes 2.0 for 2, since PHP, R and Gson write it so, answers another id or another number
# of dimensions than the one that was sent. The text of the number has to be looked at.
#
# Needs Python 3.11 to 3.13 with venv, and a package index. Ends with 0 if all is as it was seen, otherwise with 1.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat > "$folder/decoding.py" <<'EOF'
import msgspec


def taken(number):
    try:
        return msgspec.json.decode(number, type=int, strict=False)
    except msgspec.ValidationError:
        return "refused"


for number in ("2.0", "1.5", "4503599627370496.5", "0.99999999999999999999", "1e-400", "9007199254740993.0"):
    print(number, taken(number))
EOF

python3 -m venv "$folder/environment"
"$folder/environment/bin/pip" install --quiet --disable-pip-version-check msgspec==0.22.0
"$folder/environment/bin/python" "$folder/decoding.py" | tee "$folder/seen"

cat > "$folder/expected" <<'EOF'
2.0 2
1.5 refused
4503599627370496.5 4503599627370496
0.99999999999999999999 1
1e-400 0
9007199254740993.0 9007199254740992
EOF
cmp "$folder/seen" "$folder/expected"
