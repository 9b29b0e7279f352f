-- What is deployed. Times are Unix milliseconds, UTC.
CREATE TABLE formations (
    id            TEXT PRIMARY KEY,
    name          TEXT NOT NULL,
    port          INTEGER NOT NULL UNIQUE,
    -- deploying: the first deploy has not been committed; deployed: it has;
    -- deleting: it is gone for everyone, but its process and files may be left.
    state         TEXT NOT NULL CHECK (state IN ('deploying', 'deployed', 'deleting')),
    desired       TEXT NOT NULL CHECK (desired IN ('running', 'stopped')),
    current       INTEGER,
    previous      INTEGER,
    restart_count INTEGER NOT NULL DEFAULT 0,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    FOREIGN KEY (id, current) REFERENCES versions (formation_id, serial),
    FOREIGN KEY (id, previous) REFERENCES versions (formation_id, serial)
) STRICT;

-- One row per version directory formations/<id>/<dir>. Serials are internal
-- and rise within a formation.
CREATE TABLE versions (
    formation_id TEXT NOT NULL REFERENCES formations (id) ON DELETE CASCADE,
    serial       INTEGER NOT NULL,
    semantic     TEXT NOT NULL,
    sha256       TEXT NOT NULL,
    dir          TEXT NOT NULL,
    -- staged: being deployed; live: was current at least once.
    state        TEXT NOT NULL CHECK (state IN ('staged', 'live')),
    deployed_at  INTEGER NOT NULL,
    PRIMARY KEY (formation_id, serial)
) STRICT;

-- One row per management call, chained by hash. record is the exact text that
-- was hashed; the other columns repeat it for queries.
CREATE TABLE audit (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    time        INTEGER NOT NULL,
    actor       TEXT NOT NULL,
    action      TEXT NOT NULL,
    id          TEXT NOT NULL,
    status      INTEGER NOT NULL,
    record      TEXT NOT NULL,
    prev_hash   TEXT NOT NULL,
    hash        TEXT NOT NULL
) STRICT;

CREATE INDEX audit_by_time ON audit (time);
CREATE INDEX audit_by_formation ON audit (id, seq);

CREATE TRIGGER audit_is_never_changed BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'audit records are never changed'); END;

CREATE TRIGGER audit_is_never_deleted BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'audit records are never deleted'); END;
