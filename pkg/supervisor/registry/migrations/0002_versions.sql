-- Several versions of a formation, and how its processes ended.

-- The highest serial ever given within a formation: the directory of a version
-- that failed is never taken by a later one.
ALTER TABLE formations ADD COLUMN last_serial INTEGER NOT NULL DEFAULT 0;
UPDATE formations SET last_serial =
    (SELECT COALESCE(MAX(v.serial), 0) FROM versions v WHERE v.formation_id = formations.id);

-- The manifest's name may differ from version to version.
ALTER TABLE versions ADD COLUMN name TEXT NOT NULL DEFAULT '';
UPDATE versions SET name = (SELECT f.name FROM formations f WHERE f.id = versions.formation_id);

-- Whether the manifest's init command has succeeded, or was not needed. A
-- version that has served before is not initialised any more.
ALTER TABLE versions ADD COLUMN init_done INTEGER NOT NULL DEFAULT 0 CHECK (init_done IN (0, 1));
UPDATE versions SET init_done = 1 WHERE state = 'live';

-- The ends of a formation's processes, the newest 100 of each.
CREATE TABLE exits (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    formation_id TEXT NOT NULL REFERENCES formations (id) ON DELETE CASCADE,
    time         INTEGER NOT NULL,
    code         INTEGER NOT NULL, -- -1: a signal ended it, or nobody knows
    signal       TEXT NOT NULL,
    reason       TEXT NOT NULL,
    launch       TEXT NOT NULL,
    served       INTEGER NOT NULL, -- milliseconds
    stderr       TEXT NOT NULL     -- JSON array of lines
) STRICT;

CREATE INDEX exits_by_formation ON exits (formation_id, seq);
