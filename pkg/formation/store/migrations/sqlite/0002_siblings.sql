-- What two processes of one formation need that live side by side during an
-- update. Everything here is additive: the older build goes on beside it.

-- A guarded launch holds a lock for as long as its process lives (see
-- liveness.go); of others only a supervisor can tell that they have ended.
ALTER TABLE launches ADD COLUMN guarded INTEGER NOT NULL DEFAULT 0;
CREATE INDEX launches_alive ON launches (id) WHERE fenced_at IS NULL;

-- Work that one launch at a time may do. The token rises with every taking, so
-- a holder of old is told from the present one. launch_id is '' when released.
CREATE TABLE leases (
    name      TEXT PRIMARY KEY,
    launch_id TEXT    NOT NULL,
    token     INTEGER NOT NULL,
    taken_at  INTEGER NOT NULL
) WITHOUT ROWID;

-- What one living launch tells another about a turn in the other's hands:
-- cancel, reader (present while somebody reads along), left.
CREATE TABLE signals (
    sid        INTEGER PRIMARY KEY AUTOINCREMENT,
    launch_id  TEXT NOT NULL,                  -- whom it is for
    request_id TEXT NOT NULL,
    kind       TEXT NOT NULL
);
