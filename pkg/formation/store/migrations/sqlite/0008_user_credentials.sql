-- What users gave to be used for them at a service (secrets/credentials).
-- Additive: an older build goes on beside it.
CREATE TABLE user_credentials (
    id         TEXT    PRIMARY KEY,
    user_id    TEXT    NOT NULL,
    service    TEXT    NOT NULL,           -- in lower case
    name       TEXT    NOT NULL,           -- of the account at the service
    sealed     BLOB    NOT NULL,           -- AES-256-GCM of a JSON object
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX user_credentials_name ON user_credentials (user_id, service, name);

-- Which of several accounts a user chose for a session.
CREATE TABLE credential_choices (
    user_id       TEXT NOT NULL,
    session_id    TEXT NOT NULL,
    service       TEXT NOT NULL,
    credential_id TEXT NOT NULL,
    PRIMARY KEY (user_id, session_id, service)
) WITHOUT ROWID;
