"""The tables of the ledger, in SQL for both SQLite and Postgres.

`{real}`, `{int}`, `{blob}` stand for types, `{strict}` for SQLite's STRICT, and `{now}` for the database's own clock in
seconds since 1970, so that the clocks of the machines need not agree. `{on_fleet}` is true if a call was offered to workers, and
`{ended_by_worker}` if a worker has ended it, which in SQLite none can; `{off_fleet}` forgets an offer.
`{taking}` and `{taken}` enclose the takeover of runs, which also moves their open calls; in SQLite a trigger does that.

The states of a column are checked with `OR`: of `IN` SQLite makes an index of its own, for each row that is written anew, which took
a third of what it takes to write a call.
"""

from typing import Any, Final

TABLES: Final = (
    """
CREATE TABLE IF NOT EXISTS calls (
  id TEXT PRIMARY KEY,
  process TEXT NOT NULL,
  run_id TEXT NOT NULL,
  turn {int} NOT NULL,
  call_id TEXT NOT NULL,
  tool TEXT NOT NULL,
  arguments_hash TEXT NOT NULL,
  key_name TEXT NOT NULL,
  writes {int} NOT NULL,
  started_at {real} NOT NULL,
  ended_at {real},
  state TEXT NOT NULL CHECK (
    state = 'waiting' OR state = 'started' OR state = 'done' OR state = 'failed' OR state = 'cancelled' OR state = 'withdrawn'
    OR state = 'unknown'
  ),
  note TEXT NOT NULL DEFAULT '',
  arguments TEXT,
  result TEXT,
  epoch {int} NOT NULL DEFAULT 0,
  outcome {blob}
){strict}
""",
    "CREATE INDEX IF NOT EXISTS calls_by_start ON calls (started_at)",
    "CREATE INDEX IF NOT EXISTS calls_open ON calls (process) WHERE ended_at IS NULL",
    """
CREATE TABLE IF NOT EXISTS spending (
  key_name TEXT NOT NULL,
  period TEXT NOT NULL,
  nano {int} NOT NULL,
  PRIMARY KEY (key_name, period)
){strict}
""",
    """
CREATE TABLE IF NOT EXISTS processes (
  name TEXT PRIMARY KEY,
  kind TEXT NOT NULL,
  version TEXT NOT NULL,
  seen_at {real} NOT NULL
){strict}
""",
    """
CREATE TABLE IF NOT EXISTS runs (
  id TEXT PRIMARY KEY,
  caller TEXT NOT NULL,
  key_digest TEXT,
  request_digest {blob} NOT NULL,
  face TEXT NOT NULL,
  request {blob} NOT NULL,
  state TEXT NOT NULL CHECK (state = 'running' OR state = 'done' OR state = 'cancelled'),
  background {int} NOT NULL,
  owner TEXT,
  epoch {int} NOT NULL,
  cancel {int} NOT NULL DEFAULT 0,
  created_at {real} NOT NULL,
  followed_at {real} NOT NULL,
  ended_at {real},
  answer {blob},
  UNIQUE (caller, key_digest)
){strict}
""",
    "CREATE INDEX IF NOT EXISTS runs_running ON runs (owner) WHERE ended_at IS NULL",
    "CREATE INDEX IF NOT EXISTS runs_by_end ON runs (ended_at)",
    """
CREATE TABLE IF NOT EXISTS run_turns (
  run_id TEXT NOT NULL,
  choice {int} NOT NULL,
  turn {int} NOT NULL,
  body {blob} NOT NULL,
  PRIMARY KEY (run_id, choice, turn)
){strict}
""",
    """
CREATE TABLE IF NOT EXISTS answer_parts (
  run_id TEXT NOT NULL,
  part {int} NOT NULL,
  body {blob} NOT NULL,
  PRIMARY KEY (run_id, part)
){strict}
""",
    """
CREATE TABLE IF NOT EXISTS approvals (
  id TEXT PRIMARY KEY,
  process TEXT NOT NULL,
  facts TEXT NOT NULL,
  hash TEXT NOT NULL,
  since {real} NOT NULL,
  expires {real} NOT NULL,
  state TEXT NOT NULL CHECK (
    state = 'waiting' OR state = 'approved' OR state = 'denied' OR state = 'expired' OR state = 'withdrawn'
  ),
  decided_by TEXT NOT NULL DEFAULT '',
  reason TEXT NOT NULL DEFAULT ''
){strict}
""",
    "CREATE INDEX IF NOT EXISTS approvals_waiting ON approvals (since) WHERE state = 'waiting'",
    """
CREATE TABLE IF NOT EXISTS oauth_tokens (
  id TEXT PRIMARY KEY,
  server TEXT NOT NULL,
  key_name TEXT NOT NULL,
  user_name TEXT NOT NULL,
  issuer TEXT NOT NULL,
  scopes TEXT NOT NULL,
  missing TEXT NOT NULL,
  sealed TEXT NOT NULL,
  renewable {int} NOT NULL,
  life {real},
  expires_at {real},
  generation {int} NOT NULL,
  claim TEXT NOT NULL DEFAULT '',
  claimed_until {real} NOT NULL DEFAULT 0,
  updated_at {real} NOT NULL
){strict}
""",
    """
CREATE TABLE IF NOT EXISTS oauth_notes (
  name TEXT PRIMARY KEY,
  sealed TEXT NOT NULL,
  expires_at {real} NOT NULL
){strict}
""",
)
"""The statements, in the order in which they are executed."""

SQLITE_TABLES: Final = (
    *TABLES,
    "DROP INDEX IF EXISTS calls_by_run",
    "CREATE INDEX IF NOT EXISTS calls_of_durable_runs ON calls (run_id) WHERE epoch > 0",
    """
CREATE TRIGGER IF NOT EXISTS calls_move_with_their_run AFTER UPDATE OF epoch ON runs WHEN new.epoch > old.epoch BEGIN
  UPDATE calls SET process = new.owner WHERE run_id = new.id AND ended_at IS NULL;
END
""",
)
"""SQLite has no statement that updates two tables. Calls are looked for by their run where it is durable, and has an epoch: each index
that a row is in takes a tenth of what it takes to write it."""

FLEET_COLUMNS: Final = (
    "pool TEXT",
    "offer TEXT",
    "offers BIGINT NOT NULL DEFAULT 0",
    "offered_hash TEXT",
    "offered_at DOUBLE PRECISION",
    "worker TEXT",
    "child BIGINT",
    "attempt TEXT",
    "began_at DOUBLE PRECISION",
    "worker_outcome BYTEA",
)
"""The columns of calls that run on workers: the pool, the last offer and the number of offers, and the worker that began the call. A call
that was offered is `waiting` until a worker begins it; the process in its row owns it, and the worker ends it."""
POSTGRES_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS ledger_version (version BIGINT NOT NULL)",
    *TABLES,
    "CREATE INDEX IF NOT EXISTS calls_by_run ON calls (run_id)",
    """
CREATE TABLE IF NOT EXISTS keys (
  name TEXT PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE,
  models TEXT NOT NULL,
  tools TEXT NOT NULL,
  allowance TEXT NOT NULL,
  approve BIGINT NOT NULL,
  admin BIGINT NOT NULL,
  created_at DOUBLE PRECISION NOT NULL,
  revoked_at DOUBLE PRECISION,
  see TEXT NOT NULL DEFAULT 'none',
  expires_at DOUBLE PRECISION,
  old_hash TEXT,
  old_expires_at DOUBLE PRECISION,
  events TEXT,
  usage TEXT,
  offer TEXT
)
""",
    "CREATE TABLE IF NOT EXISTS pins (tool TEXT PRIMARY KEY, pin TEXT NOT NULL)",
    *(f"ALTER TABLE calls ADD COLUMN IF NOT EXISTS {column}" for column in FLEET_COLUMNS),
    "CREATE INDEX IF NOT EXISTS calls_of_fleet_open ON calls (pool) WHERE pool IS NOT NULL AND ended_at IS NULL",
    "CREATE INDEX IF NOT EXISTS calls_of_fleet_by_end ON calls (ended_at) WHERE worker_outcome IS NOT NULL",
    """
CREATE TABLE IF NOT EXISTS kept (
  key TEXT PRIMARY KEY,
  value BYTEA NOT NULL,
  expires_at DOUBLE PRECISION NOT NULL,
  put_at DOUBLE PRECISION NOT NULL,
  share TEXT NOT NULL,
  size BIGINT NOT NULL
)
""",
    "CREATE INDEX IF NOT EXISTS kept_by_share ON kept (share, put_at, key, size) WHERE share <> ''",
    "CREATE INDEX IF NOT EXISTS kept_by_expiry ON kept (expires_at)",
    "CREATE TABLE IF NOT EXISTS pool_keys (pool TEXT PRIMARY KEY, key BYTEA NOT NULL)",
)
"""Tables in Postgres only; on one machine keys and pins have files of their own, and there are no workers."""
RENAMED_TABLES: Final = (
    """DO $$ BEGIN
  IF to_regclass('run_turns') IS NULL AND to_regclass('journal') IS NOT NULL THEN
    ALTER TABLE journal RENAME TO run_turns;
  END IF;
END $$""",
)
"""Until version 5 the turns of runs were in a table `journal`."""
MOVE_FLEET_CALLS: Final = """DO $$ BEGIN
  IF to_regclass('fleet_calls') IS NOT NULL THEN
    UPDATE calls SET pool = old.pool, offer = old.process || '/0', offers = 1, offered_hash = old.arguments_hash,
      offered_at = old.offered_at, worker = old.worker, child = old.child, attempt = old.attempt, began_at = old.began_at,
      worker_outcome = old.outcome,
      state = CASE WHEN calls.ended_at IS NOT NULL THEN calls.state WHEN old.state = 'offered' THEN 'waiting'
        WHEN old.state = 'running' THEN 'started' ELSE old.state END,
      ended_at = coalesce(calls.ended_at, old.ended_at),
      note = CASE WHEN calls.ended_at IS NOT NULL THEN calls.note ELSE old.note END
      FROM fleet_calls AS old WHERE old.id = calls.id;
    DROP TABLE fleet_calls;
  END IF;
END $$"""
"""Until version 5 a call of a pool had a second row in `fleet_calls`."""
DROPPED_TABLES: Final = "DROP TABLE IF EXISTS fleet_key"
"""Until version 6 all pools had one key."""
VERSION: Final = 8
"""The version of the tables in Postgres."""

SQLITE_TERMS: Final[dict[str, str]] = {
    "real": "REAL",
    "int": "INTEGER",
    "blob": "BLOB",
    "strict": " STRICT",
    "now": "((julianday('now') - 2440587.5) * 86400.0)",
    "share": "",
    "skip": "",
    "taking": "",
    "taken": "",
    "on_fleet": "(0 = 1)",
    "ended_by_worker": "(0 = 1)",
    "off_fleet": "",
}
POSTGRES_TERMS: Final[dict[str, str]] = {
    "real": "DOUBLE PRECISION",
    "int": "BIGINT",
    "blob": "BYTEA",
    "strict": "",
    "now": "EXTRACT(EPOCH FROM clock_timestamp())::float8",
    "share": "FOR SHARE",
    "skip": "FOR UPDATE SKIP LOCKED",
    "taking": "WITH taken AS (",
    "taken": (
        "), moved AS (UPDATE calls SET process = taken.owner FROM taken"
        " WHERE calls.run_id = taken.id AND calls.ended_at IS NULL) SELECT * FROM taken"
    ),
    "on_fleet": "(calls.pool IS NOT NULL)",
    "ended_by_worker": "(calls.worker_outcome IS NOT NULL)",
    "off_fleet": (
        ", pool = CASE WHEN calls.worker_outcome IS NULL AND (calls.ended_at IS NOT NULL OR calls.worker IS NULL) THEN NULL"
        " ELSE calls.pool END"
    ),
}

CALL_COLUMNS: Final[tuple[str, ...]] = (
    "process", "id", "run_id", "turn", "call_id", "tool", "arguments_hash", "key_name", "writes", "started_at", "epoch", "state",
    "ended_at", "note", "arguments", "result",
)  # fmt: skip
ENDING: Final[tuple[str, ...]] = ("state", "ended_at", "note", "result")
"""The columns that the end of a call changes."""
CHANGING: Final = ("started_at", *ENDING)
"""Those, and the one that the beginning of a call changes that has waited."""
SPENT: Final = (
    "INSERT INTO spending VALUES (?1, ?2, ?3) ON CONFLICT (key_name, period) DO UPDATE SET nano = spending.nano + ?3"
)
"""May be below zero for a while: what was used less than reserved may be written before what was reserved. Who reads it takes that for zero."""
PROCESS_ENDED_FIRST: Final = "the process ended first"
NEVER: Final = "never begun: "
"""The prefix of the note of a call that did not run."""
NEVER_BEGUN: Final = f"{NEVER}{PROCESS_ENDED_FIRST}"
CUT_OFF: Final = "cut off: "
"""The prefix of the note of a call that was cut off."""
ENDS_ONCE: Final = (
    "(calls.ended_at IS NULL AND calls.epoch = excluded.epoch AND calls.process = excluded.process"
    " AND NOT ({on_fleet} AND excluded.state = 'unknown'))"
    " OR ({on_fleet} AND excluded.ended_at IS NOT NULL AND calls.epoch = excluded.epoch AND calls.process = excluded.process"
    " AND (excluded.state = calls.state OR ({ended_by_worker} AND excluded.state <> 'unknown')))"
    " OR (excluded.ended_at IS NOT NULL AND calls.epoch = 0 AND calls.process = excluded.process"
    f" AND calls.note IN ('{PROCESS_ENDED_FIRST}', '{NEVER_BEGUN}'))"
)
"""A row keeps its end, except for one written by other processes for a process that was wrongly taken for dead, unless its run
was resumed. Of a call on a worker its process does not say that its end is unknown: the fleet does, once it was given up. What a
worker has ended its process completes."""
MARK_LOST: Final = (
    "UPDATE calls SET state = CASE state WHEN 'waiting' THEN 'withdrawn' ELSE 'unknown' END, ended_at = {now},"
    f" note = CASE state WHEN 'waiting' THEN '{NEVER_BEGUN}' ELSE '{PROCESS_ENDED_FIRST}' END"
    " WHERE ended_at IS NULL AND process NOT IN (SELECT name FROM processes WHERE seen_at > {now} - CAST(?1 AS {real}))"
    " AND NOT ({on_fleet} AND state = 'started')"
    " RETURNING state"
)
"""Ends the calls of dead processes. A waiting call was certainly not run, and one that a worker has begun goes on."""


def fill_in(statement: str, terms: dict[str, str]) -> str:
    """Fill the placeholders of a statement for one database."""
    for name, term in terms.items():
        statement = statement.replace(f"{{{name}}}", term)
    return statement


Row = tuple[Any, ...]
