#!/bin/sh
# SQLite 3.54.1 with apsw 3.54.1.0: RETURNING writes a large value into a temporary file. Seen on 2026-11-28, Python 3.11,
# Linux x86_64.
#
# Expected: UPDATE … RETURNING hands out a row as SELECT does. A queue that claims a job and takes its body in the one
# statement then needs no room but the database's own.
# What happens: SQLite keeps the rows of RETURNING in a table of its own until the statement has ended. Once they are
# larger than that table's cache, here between 1.5 and 1.9 MB, it goes into a file in the system's temporary folder,
# each time. A SELECT of the same value in the same transaction opens no file.
# Why it matters: a claim fails while /tmp is full or read-only, though the database's disk has room, so one large job at
# the head holds up all behind it; and what a user sent is written outside of the folder that was made private for it.
# In containers /tmp is often memory. Asking for the value apart costs nothing; `PRAGMA temp_store=2` helps as well.
#
# Needs Python 3.11 to 3.13 with venv and a package index. Ends with 0 if all is as it was seen, otherwise with 1.
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat > "$folder/claims.py" <<'EOF'
import pathlib
import sys

import apsw

opened = []  # the flags of all files since the last look


class Watching(apsw.VFS):
    def __init__(self):
        super().__init__("watching", apsw.vfs_names()[0])

    def xOpen(self, name, flags):
        opened.append(flags[0])
        return super().xOpen(name, flags)


watching = Watching()
database = apsw.Connection(str(pathlib.Path(sys.argv[1]) / "jobs"), vfs="watching")
database.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, state TEXT)")
database.execute("CREATE TABLE bodies (id INTEGER PRIMARY KEY, body BLOB)")
TEMPORARY = apsw.SQLITE_OPEN_TEMP_DB | apsw.SQLITE_OPEN_TRANSIENT_DB


def claimed(num_bytes, *statements):
    """How many temporary files it takes, and the bytes that came back."""
    database.execute("INSERT OR REPLACE INTO jobs VALUES (1, 'queued')")
    database.execute("INSERT OR REPLACE INTO bodies VALUES (1, zeroblob(?))", (num_bytes,))
    opened.clear()
    database.execute("BEGIN IMMEDIATE")
    rows = [database.execute(statement).fetchall() for statement in statements]
    database.execute("COMMIT")
    return sum(bool(flags & TEMPORARY) for flags in opened), len(rows[-1][0][-1])


UPDATE = "UPDATE jobs SET state = 'taken' WHERE id = 1 RETURNING id"
BODY = "SELECT body FROM bodies WHERE bodies.id = 1"
for num_bytes in (1_500_000, 1_900_000, 4_000_000):
    print(num_bytes, "by RETURNING:", *claimed(num_bytes, f"{UPDATE}, ({BODY})"))
    print(num_bytes, "by SELECT:", *claimed(num_bytes, UPDATE, BODY))
EOF

"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir apsw==3.54.1.0
"$folder/venv/bin/python" "$folder/claims.py" "$folder" | tee "$folder/seen"
expected="1500000 by RETURNING: 0 1500000
1500000 by SELECT: 0 1500000
1900000 by RETURNING: 1 1900000
1900000 by SELECT: 0 1900000
4000000 by RETURNING: 1 4000000
4000000 by SELECT: 0 4000000"
printf '%s\n' "$expected" | cmp -s - "$folder/seen" || { echo "this has changed"; exit 1; }
