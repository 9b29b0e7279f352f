-- Times are unix milliseconds (UTC) unless a comment says otherwise.

-- Every process that ever wrote here. A fenced one must not write again.
CREATE TABLE launches (
    id         TEXT PRIMARY KEY,
    started_at INTEGER NOT NULL,
    fenced_at  INTEGER
) WITHOUT ROWID;

-- Every accepted turn. rid is the order of acceptance.
CREATE TABLE requests (
    rid           INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT    NOT NULL UNIQUE,
    user_id       TEXT    NOT NULL,
    session_id    TEXT    NOT NULL,
    status        TEXT    NOT NULL,
    mode          TEXT    NOT NULL,            -- sync, stream, async
    on_disconnect TEXT    NOT NULL DEFAULT '',
    agent_id      TEXT    NOT NULL DEFAULT '', -- as asked for; then the one that answered
    message       TEXT    NOT NULL,
    launch_id     TEXT    NOT NULL,            -- who works on it
    attempt       INTEGER NOT NULL DEFAULT 1,
    created_at    INTEGER NOT NULL,
    completed_at  INTEGER,
    result        TEXT,                        -- text of the answer
    reply         TEXT,                        -- JSON: what a replay needs beside result
    error         TEXT,
    error_code    TEXT
);
CREATE INDEX requests_by_user ON requests (user_id, rid);
CREATE INDEX requests_open ON requests (rid) WHERE completed_at IS NULL;

-- Keys of requests that a caller may repeat. A row names the last request that
-- ran under the key.
CREATE TABLE idempotency (
    key        BLOB PRIMARY KEY,               -- hash of method, path, user, mode and key
    request_id TEXT    NOT NULL,
    body_hash  BLOB    NOT NULL,
    created_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX idempotency_age ON idempotency (created_at);

-- Finished steps of a turn, so that a resumed turn does not repeat them.
CREATE TABLE journal (
    request_id TEXT NOT NULL,
    step       TEXT NOT NULL,
    payload    BLOB NOT NULL,
    PRIMARY KEY (request_id, step)
) WITHOUT ROWID;

-- Streamed frames in batches: frames is a sequence of length-prefixed frames
-- with the ids first_id .. last_id. It has a rowid, unlike others: without one, a
-- row of more than 1000 bytes, which most of these have, is written to a page of
-- its own. Stores from before this was known have none; nothing depends on it.
CREATE TABLE stream_events (
    request_id TEXT    NOT NULL,
    first_id   INTEGER NOT NULL,
    last_id    INTEGER NOT NULL,
    frames     BLOB    NOT NULL,
    PRIMARY KEY (request_id, first_id)
);

CREATE TABLE sessions (
    user_id       TEXT    NOT NULL,
    session_id    TEXT    NOT NULL,
    title         TEXT,
    last_agent    TEXT    NOT NULL DEFAULT '',
    message_count INTEGER NOT NULL DEFAULT 0,
    created_at    INTEGER NOT NULL,
    last_activity INTEGER NOT NULL,
    PRIMARY KEY (user_id, session_id)
) WITHOUT ROWID;
CREATE INDEX sessions_recent ON sessions (user_id, last_activity);

-- The transcript: what buffer memory recalls from.
CREATE TABLE messages (
    mid        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT    NOT NULL,
    user_id    TEXT    NOT NULL,
    session_id TEXT    NOT NULL,
    role       TEXT    NOT NULL,
    agent_id   TEXT    NOT NULL DEFAULT '',
    content    TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    request_id TEXT    NOT NULL
);
CREATE INDEX messages_by_session ON messages (user_id, session_id, mid);

-- The event log: append order is id, which is never shown. Only deleted_at and
-- deleted_reason ever change. occurred_at and ingested_at are milliseconds.
CREATE TABLE memory_events (
    id                INTEGER PRIMARY KEY AUTOINCREMENT,
    public_id         TEXT    NOT NULL UNIQUE,
    user_id           TEXT    NOT NULL,
    formation_id      TEXT    NOT NULL,
    scope_type        TEXT    NOT NULL DEFAULT 'user',
    scope_id          TEXT,
    occurred_at       INTEGER NOT NULL,
    ingested_at       INTEGER NOT NULL,
    event_type        TEXT    NOT NULL,
    event_version     INTEGER NOT NULL,
    payload           TEXT    NOT NULL,
    source            TEXT    NOT NULL,
    source_id         TEXT,
    source_confidence REAL    NOT NULL DEFAULT 1.0,
    caused_by         INTEGER,
    decay_rate        TEXT    NOT NULL DEFAULT 'static',
    expires_at        INTEGER,
    deleted_at        INTEGER,
    deleted_reason    TEXT,
    agent_id          TEXT,
    conversation_id   TEXT,
    request_id        TEXT
);
CREATE UNIQUE INDEX memory_events_source_id ON memory_events (formation_id, user_id, source, source_id)
    WHERE source_id IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX memory_events_occurred ON memory_events (formation_id, user_id, occurred_at);
CREATE INDEX memory_events_type ON memory_events (formation_id, user_id, event_type);
CREATE INDEX memory_events_source ON memory_events (formation_id, user_id, source);
CREATE INDEX memory_events_caused_by ON memory_events (caused_by) WHERE caused_by IS NOT NULL;
CREATE INDEX memory_events_expires ON memory_events (expires_at) WHERE expires_at IS NOT NULL;

-- Audit and alert records waiting for the supervisor.
CREATE TABLE records (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    time    INTEGER NOT NULL,
    kind    INTEGER NOT NULL,
    action  TEXT    NOT NULL,
    actor   TEXT    NOT NULL,
    result  TEXT    NOT NULL,
    message TEXT    NOT NULL,
    detail  BLOB
);
